"""A replica that is told to stop, and why."""

from types import SimpleNamespace
from typing import Any

import pytest

from dbelief.errors import Refused, Unreachable
from worker.replica import Replica


class Told:
    """A membership whose next beat brings this."""

    def __init__(self, lost: str = "", error: Exception | None = None) -> None:
        self.lost, self.beats = "", 0
        self._news, self._error = lost, error

    def beat(self, patience_s: float) -> None:
        self.beats += 1
        if self._error is not None:
            raise self._error
        self.lost = self._news


def stopped(member: Told) -> None:
    replica: Any = object.__new__(Replica)
    replica._session = SimpleNamespace(member=member)
    replica._check_standing()


def test_one_that_was_given_up_does_not_end_well() -> None:
    with pytest.raises(Refused, match="gave this member up"):
        stopped(Told(lost="the coordinator gave this member up"))


def test_the_end_of_a_job_is_a_good_end() -> None:
    for member in (Told(), Told(error=Unreachable("the coordinator has left"))):
        stopped(member)
        assert (member.beats, member.lost) == (1, ""), "it asked, and was not given up"
