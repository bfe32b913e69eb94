"""Which node a member is started on, and whether there is one for it once a node is lost. No process, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

WORKER, SHARD = "worker", "ps"


class Places:
    """The members of a job by node.

    Shards are spread over nodes, then members over what tasks a node has room for. A shard that ended badly goes to
    another node, for it is needed, and the node may be dead before Slurm knows. A worker stays on its node as long as
    that is there; where it is not, a worker goes where a task is free, or where no worker is left, anywhere.

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
        """Give a member the node that is best for it now; one of those that are `left`, of which there is one."""
        self._members[name] = role, self._best(role, name, left)
        return self._members[name][1]

    def failed(self, node: str) -> None:
        """A member has ended there that should not have."""
        self._failures[node] += 1

    def again(self, role: str, name: str, left: Collection[str]) -> bool:
        """Whether a member that has ended may be put somewhere again."""
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
            order, key=lambda node: (self._failures[node], self._alike(role, node, name), self._load(node, name))
        )

    def _on(self, node: str, name: str) -> list[str]:
        """Roles of the other members on a node."""
        return [role for member, (role, place) in self._members.items() if place == node and member != name]

    def _alike(self, role: str, node: str, name: str) -> int:
        return self._on(node, name).count(role)

    def _load(self, node: str, name: str) -> float:
        return len(self._on(node, name)) / self._tasks[node]
