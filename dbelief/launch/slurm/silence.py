"""Shards whose step runs and that the coordinator does not hear: their node may be dead minutes before Slurm knows."""

from __future__ import annotations

SHORTEST_S = 15.0
BEATS = 3
"""So many heartbeat deadlines; one that is only fenced ends by itself within the first."""


class Silence:
    """When to end a shard's step, to start it on another node.

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
        """Whether a shard has been silent for too long since it was heard in its present life; to be asked repeatedly.

        Parameters
        ----------
        started
            How often it was started: which life the present one is.
        silent_s
            Since the coordinator has heard its name, in this life or an earlier one.
        """
        if self._began.get(name, (0, 0.0))[0] != started:
            self._began[name] = started, now_s
        if silent_s < now_s - self._began[name][1]:
            self._heard.add((name, started))
        return (name, started) in self._heard and silent_s > self._longest_s
