"""Where the processes of a cluster run, and with which credentials they connect: this machine, or another place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from dbelief.launch.child_process import ChildProcess, Forked, Way
from dbelief.launch.forked_process import ForkServer
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.security.identity import clear


class Site(Protocol):
    """What a `LocalCluster` needs of the machines that it runs on.

    Attributes
    ----------
    listen
        Listen address of the coordinator, which is a child process of this one; port 0.
    stopped
        Exit code of a run that was stopped by a signal and shut down cleanly.
    """

    listen: str
    stopped: int

    def entered(self, logs: Path) -> AbstractContextManager[None]:
        """Load the launcher's credentials, and hold the site's own resources; `logs`: folder for its logs."""
        ...

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """Folder of the registry's data: below the run folder, or below `scratch`, removed with the launcher."""
        ...

    def arguments(self, role: str) -> list[str]:
        """Additional command-line arguments of every process of a role."""
        ...

    def way(self, role: str, name: str) -> Way:
        """Method of starting a process at this site."""
        ...

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """End shards that still run but are lost to the job; called a few times a second."""
        ...


class LoopbackSite:
    """This machine: forked child processes that connect over loopback.

    Parameters
    ----------
    server
        Started earlier, so that it imports meanwhile; None: one of its own.
    """

    listen = "127.0.0.1:0"
    stopped = 130

    def __init__(self, server: ForkServer | None = None) -> None:
        self._given = server
        self._server = server or ForkServer()

    @contextmanager
    def entered(self, logs: Path) -> Iterator[None]:
        """See `Site`."""
        clear()  # all traffic is on loopback, and credentials in the user's environment are for another job
        with ExitStack() as stack:
            if self._given is None:
                stack.enter_context(self._server)
            yield

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """See `Site`."""
        return run / "registry"

    def arguments(self, role: str) -> list[str]:
        """See `Site`."""
        return []

    def way(self, role: str, name: str) -> Way:
        """See `Site`."""
        return Forked(self._server)

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """See `Site`."""
