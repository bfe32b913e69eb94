"""A Ray cluster as a cluster's site: registry and coordinator on the driver's node, members as actors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dbelief.job import Job
from dbelief.launch.child_process import ChildProcess, Direct, Way
from dbelief.launch.elsewhere import ROLES, bracketed, job_credentials, marker
from dbelief.launch.guarded_program import packed
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.url import Url

from .cluster import RayCluster
from .member import RayMember


class RaySite:
    """A `Site` of one job on a Ray cluster, which this process is a driver of.

    Raises
    ------
    UserError
        See `RayCluster`.
    """

    stopped = 130

    def __init__(self, job: Job) -> None:
        self._job = job
        self._cluster = RayCluster()
        self.listen = f"{bracketed(self._cluster.address)}:0"
        self._folder = Path()
        self._packed: dict[str, Any] = {}
        self._file = ""

    @contextmanager
    def entered(self, logs: Path) -> Iterator[None]:
        """See `Site`; credentials reach members through Ray's object store."""
        import ray

        with ExitStack() as stack:
            stack.callback(self._cluster.close)
            self._folder = stack.enter_context(job_credentials(logs.parent, self._cluster.address))
            self._packed = {role: ray.put(packed(self._folder / role)) for role in ROLES}
            if not isinstance(self._job.output, Url):
                self._file = str(stack.enter_context(marker(logs.parent)))
            self._cluster.reserve(self._job)
            yield

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """See `Site`."""
        return run / "registry"

    def arguments(self, role: str) -> list[str]:
        """See `Site`."""
        return [] if role in ROLES else ["--credentials", str(self._folder / role)]

    def way(self, role: str, name: str) -> Way:
        """See `Site`."""
        if role not in ROLES:
            return Direct()
        return RayMember(self._cluster, self._job, role, name, self._packed[role], self._file)

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """See `Site`: Ray notices nodes that are lost."""
