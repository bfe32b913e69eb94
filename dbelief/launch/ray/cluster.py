"""The Ray cluster that this process is a driver of: its resources, and where actors are placed."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dbelief.errors import RuntimeFailure, UserError
from dbelief.job import Job
from dbelief.launch.places import WORKER

log = logging.getLogger(__name__)

ANSWER_S = 5.0
ROOM_S = 60.0
"""How long the shards' places are waited for, in seconds."""
SMALLEST = 0.01
"""Least share of a CPU that a member reserves."""
FOUND = ("", "auto")
"""Values of `RAY_ADDRESS` that name no cluster: it is found."""
_CLIENT = "ray://: the launcher must run on a node of the cluster: ray job submit -- dbelief train ... --on ray"


class RayCluster:
    """A connection to the cluster that `RAY_ADDRESS` names, or this node is part of; none is started.

    A connection that this process has already is used, and stays.

    Attributes
    ----------
    address
        Of this node, as other nodes have it.
    namespace
        Of the job's actors: another job may have the same name.

    Raises
    ------
    UserError
        Ray is not installed, there is no cluster, or this process is none of its nodes'.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise UserError("--on ray needs Ray: pip install 'dbelief[ray]'") from None
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect()
        elif ray.util.client.ray.is_connected():
            raise UserError(_CLIENT)
        self.address: str = ray.util.get_node_ip_address()
        self.namespace = f"dbelief-{secrets.token_hex(4)}"
        self._group: Any = None
        self._each = 1.0
        self._gpus = 0.0
        self._starts = Counter[str]()

    def close(self) -> None:
        """Release the shards' places and, where this made it, the connection."""
        import ray

        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None
        if self._owns:
            ray.shutdown()

    def reserve(self, job: Job) -> None:
        """Decide what each member reserves, and reserve the shards' places, spread over the nodes.

        A member reserves a CPU, or as much of one as makes all of them fit on the nodes that there are now. A worker of
        a job on GPUs reserves one of those too; where the job leaves that open, as many workers do as there are GPUs.

        Raises
        ------
        RuntimeFailure
            The shards have no room within `ROOM_S`.
        """
        import ray

        shards, nodes = job.shards * job.replication, [one["Resources"] for one in ray.nodes() if one["Alive"]]
        cpus, members = [node.get("CPU", 0.0) for node in nodes], shards + job.replicas
        self._each = share_of(cpus, members)
        if self._each < 1:
            log.info(f"{sum(cpus):g} CPUs in the Ray cluster for {members} members: each reserves {self._each:g}")
        gpus = sum(int(node.get("GPU", 0.0)) for node in nodes)
        self._gpus = {"cpu": 0.0, "cuda": math.inf, "auto": gpus}[job.device]
        name = f"{self.namespace} {job.name} shards"
        self._group = ray.util.placement_group([{"CPU": self._each}] * shards, strategy="SPREAD", name=name)
        if not self._group.wait(ROOM_S):
            needed = f"{shards} shards with {self._each:g} CPU each"
            raise RuntimeFailure(f"no room in the Ray cluster within {ROOM_S:g} s for {needed}; {self.free()}")

    def name(self, job: str, member: str) -> str:
        """Name of a member's next actor: the dead one keeps its own for a while."""
        self._starts[member] += 1
        return f"dbelief {job} {member}" + f" start {self._starts[member]}" * (self._starts[member] > 1)

    def options(self, role: str, number: int, again: bool) -> dict[str, Any]:
        """Ray's options of the actor of a member.

        A worker goes where there is room, and waits for it. A shard has its place in the group; one that is started
        `again` goes anywhere and reserves nothing: the job needs it, and its place may be lost with its node.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if role == WORKER:
            gpus = {"num_gpus": 1} if number < self._gpus else {}
            return {"num_cpus": self._each, **gpus}
        if again or number >= self._group.bundle_count:
            return {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        return {"num_cpus": self._each, "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, number)}

    def free(self) -> str:
        """What of the cluster is free, in words."""
        import ray

        whole, free = ray.cluster_resources(), ray.available_resources()
        kinds = [kind for kind in ("CPU", "GPU") if kind in whole]
        return "free are " + ", ".join(f"{free.get(kind, 0):g} of {whole[kind]:g} {kind}" for kind in kinds)


def _connect() -> None:
    """Connect to the cluster; of one that is found, not named, Ray's own search knows whether it needs a token."""
    import ray

    address = cluster_address(os.environ)
    named = os.environ.get("RAY_ADDRESS", "") not in FOUND
    try:
        ray.init(address if named else "auto", log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        hint = "" if os.environ.get("RAY_AUTH_MODE") else "; one that needs a token needs RAY_AUTH_MODE=token here too"
        raise UserError(f"the Ray cluster at {address} takes no driver: {error}{hint}") from None


def share_of(cpus: Sequence[float], members: int) -> float:
    """The largest share of a CPU, at most one, of which nodes with so many CPUs hold so many members."""
    for hundredths in range(100, 1, -1):
        if sum(int(100 * own / hundredths + 1e-9) for own in cpus) >= members:
            return hundredths / 100
    return SMALLEST


def cluster_address(environment: Mapping[str, str]) -> str:
    """HOST:PORT of the cluster that `RAY_ADDRESS` names, else of the one that this computer is part of.

    Ray itself waits minutes for a cluster that is no more.

    Raises
    ------
    UserError
        There is none, it does not answer, or it is a `ray://`.
    """
    address, named = environment.get("RAY_ADDRESS", ""), "RAY_ADDRESS"
    if address in FOUND:
        file = Path(environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp") / "ray/ray_current_cluster"
        address, named = file.read_text().strip() if file.exists() else "", str(file)
    if not address:
        raise UserError("no Ray cluster runs on this computer, and RAY_ADDRESS names none; ray start --head starts one")
    if address.startswith("ray://"):
        raise UserError(_CLIENT)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address} ({named}): {error}") from None
    return address
