from __future__ import annotations

import pytest

from tests.equivalence.harness import Problem


@pytest.fixture(params=["quadratic", "network"])
def problem(request: pytest.FixtureRequest) -> Problem:
    """Each of the problems of the test's module."""
    found: Problem = request.module.PROBLEMS[request.param]
    return found
