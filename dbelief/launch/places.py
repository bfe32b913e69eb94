"""Node placement of members, and whether a node remains for one after a node is lost. No process, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

WORKER = "worker"


class Places:
    """Placement of a job's members on nodes.

    Shards are spread over nodes, then members over the free tasks of the nodes. A shard that failed is restarted on
    another node, because it is needed and its node may be down before Slurm detects that. A worker stays on its node
    while that exists; otherwise it is placed on a node with a free task, or on any node if no worker is left.

    Parameters
    ----------
    tasks
        Tasks by node, in the order of preference among equals.
    """

    def __init__(self, tasks: Mapping[str, int]) -> None:
        self._tasks = tasks
        self._members: dict[str, tuple[str, str]] = {}
        self._failures: Counter[str] = Counter()

    def put(self, role: str, name: str, left: Collection[str]) -> str:
        """Assign a member to the best node for it now, one of the nodes in `left`, which must not be empty."""
        self._members[name] = role, self._best(role, name, left)
        return self._members[name][1]

    def failed(self, node: str) -> None:
        """Record that a member on this node has ended unexpectedly."""
        self._failures[node] += 1

    def again(self, role: str, name: str, left: Collection[str]) -> bool:
        """Whether a member that has ended may be placed again."""
        left = [node for node in self._tasks if node in left]
        if role != WORKER or self._members[name][1] in left:
            return bool(left)
        free = any(len(self._on(node, name)) < self._tasks[node] for node in left)
        workers = [member for member, (other, node) in self._members.items() if other == WORKER and node in left]
        return free or (bool(left) and not workers)

    def _best(self, role: str, name: str, left: Collection[str]) -> str:
        own = self._members.get(name, ("", ""))[1]
        order = [node for node in self._tasks if node in left]
        if role == WORKER:
            return min(order, key=lambda node: (node != own, self._failures[node], self._load(node, name)))
        return min(
            order, key=lambda node: (self._failures[node], self._on(node, name).count(role), self._load(node, name))
        )

    def _on(self, node: str, name: str) -> list[str]:
        """Roles of the other members on a node."""
        return [role for member, (role, place) in self._members.items() if place == node and member != name]

    def _load(self, node: str, name: str) -> float:
        return len(self._on(node, name)) / self._tasks[node]
