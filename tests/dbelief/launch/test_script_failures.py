"""Scripts that fail before they join: all in the same way, or in a way that a further start may change."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dbelief.launch.child_process import ChildProcess
from dbelief.launch.script_failures import ScriptFailures

MISSING = ["Traceback (most recent call last):", '  File "/s.py", line 1, in <module>', "    import a", ""]
MODULE = [*MISSING[:3], "ModuleNotFoundError: No module named 'a'"]
REASON = "/s.py:1: ModuleNotFoundError: No module named 'a'"
REFUSED = [*MISSING[:3], "ConnectionRefusedError: [Errno 111] Connection refused"]


class Failed:
    """A script that has ended."""

    def __init__(self, number: int, lines: list[str], code: int = 1) -> None:
        self.name, self.code, self._lines = f"worker-{number}", code, lines

    def log_messages(self) -> list[str]:
        return self._lines


def common(*failed: Failed, scripts: int = 2, joined: tuple[str, ...] = ()) -> str:
    failures = ScriptFailures()
    for one in failed:  # one after the other, as they end
        failures.note([cast(ChildProcess, one)])
    return failures.common([f"worker-{number}" for number in range(scripts)], set(joined))


def test_the_same_error_in_all_of_them_is_final() -> None:
    assert common(Failed(0, MODULE), Failed(1, MODULE)) == REASON
    assert common(Failed(0, MODULE), scripts=1) == REASON


@pytest.mark.parametrize(
    "case",
    [
        {"failed": [Failed(0, MODULE)]},
        {"failed": [Failed(0, MODULE), Failed(1, MODULE)], "joined": ("worker-1",)},
        {"failed": [Failed(0, MODULE), Failed(1, [*MISSING[:3], "NameError: name 'b' is not defined"])]},
        {"failed": [Failed(0, REFUSED), Failed(1, REFUSED)]},
        {"failed": [Failed(0, MODULE), Failed(1, MODULE, code=-9)]},
        {"failed": [Failed(0, ["Killed"], 137), Failed(1, ["Killed"], 137)]},
        {"failed": [], "scripts": 0},
    ],
    ids=["one goes on", "one has joined", "another error", "a connection", "a signal", "no traceback", "no script"],
)
def test_what_may_succeed_is_started_again(case: dict[str, Any]) -> None:
    assert common(*case.pop("failed"), **case) == ""


def test_the_last_failure_of_each_counts() -> None:
    assert common(Failed(0, REFUSED), Failed(1, MODULE), Failed(0, MODULE)) == REASON
