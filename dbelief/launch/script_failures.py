"""Scripts that fail before they have joined the job: whether a further start can succeed.

An error of a script's own code before it has joined, the same in all workers, is the same at the next start: a missing
module, a mistake in the syntax, a missing file. A process that was ended by a signal, that lacked memory or a
connection, or that fails alone, is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from dbelief.launch.child_process import ChildProcess
from dbelief.launch.python_error import error_in


class ScriptFailures:
    """The last failure of each script that has not joined."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def note(self, failed: Iterable[ChildProcess]) -> None:
        """Record how these have ended."""
        for child in failed:
            error, lasts = error_in(child.log_messages())
            self._reasons[child.name] = error if lasts and (child.code or 0) > 0 else ""

    def common(self, scripts: Iterable[str], joined: Set[str]) -> str:
        """The error by which all scripts of these names failed before they joined; "" where one may succeed."""
        names = set(scripts)
        if not names or names & joined or not names <= self._reasons.keys():
            return ""
        reasons = {self._reasons[name] for name in names}
        return reasons.pop() if len(reasons) == 1 else ""
