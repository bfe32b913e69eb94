"""Time of a replica's compute thread by phase: fetch, compute, push, wait, data."""

from __future__ import annotations

from dbelief.process.runtime import runtime


class PhaseTimer:
    """Seconds that the compute thread spent in each phase; of a script, which computes and loads data between the calls
    of dbelief, "compute" has both.

    Attributes
    ----------
    seconds
        By phase.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("fetch", "compute", "push", "wait", "data"), 0.0)
        self._at = runtime.monotonic()

    def end(self, phase: str, waited_s: float = 0.0) -> None:
        """Add the time since the last call to `phase`, except `waited_s` of it, which go to "wait"."""
        now = runtime.monotonic()
        self.seconds[phase] += now - self._at - waited_s
        self.seconds["wait"] += waited_s
        self._at = now
