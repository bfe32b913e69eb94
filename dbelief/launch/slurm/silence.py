"""Detection of shards whose step runs but sends no heartbeats: the node may fail minutes before Slurm detects it."""

from __future__ import annotations

SHORTEST_S = 15.0
BEATS = 3
"""Number of heartbeat deadlines without contact; a shard that is only fenced exits by itself within the first."""


class Silence:
    """Decision when to end a shard's step, to start it on another node.

    Parameters
    ----------
    beat_s
        The job's heartbeat deadline.
    """

    def __init__(self, beat_s: float) -> None:
        self._longest_s = max(SHORTEST_S, BEATS * beat_s)
        self._began: dict[str, tuple[int, float]] = {}
        self._heard: set[tuple[str, int]] = set()

    def is_lost(self, name: str, started: int, silent_s: float, now_s: float) -> bool:
        """Whether a shard has sent nothing for too long since its present incarnation was last seen; call repeatedly.

        Parameters
        ----------
        started
            Number of starts so far, which identifies the present incarnation.
        silent_s
            Seconds since the coordinator last received a heartbeat under this name, in any incarnation.
        """
        if self._began.get(name, (0, 0.0))[0] != started:
            self._began[name] = started, now_s
        if silent_s < now_s - self._began[name][1]:
            self._heard.add((name, started))
        return (name, started) in self._heard and silent_s > self._longest_s
