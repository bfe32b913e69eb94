from __future__ import annotations

import os
import resource

import pytest

from dbelief.errors import UserError
from dbelief.launch.limits import check_threads


@pytest.mark.parametrize(
    ("user", "most", "allowed"), [(1, 55, False), (1, 56, True), (0, 1, True), (1, resource.RLIM_INFINITY, True)]
)
def test_a_job_whose_threads_are_not_allowed_is_refused(
    monkeypatch: pytest.MonkeyPatch, user: int, most: int, allowed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    if allowed:
        check_threads(7)
        return
    with pytest.raises(UserError, match=r"^this user may have 55 threads and processes \(ulimit -u\), and the job's 7"):
        check_threads(7)
