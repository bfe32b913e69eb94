from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.equivalence.harness import Problem


@pytest.fixture(scope="session", autouse=True)
def programs_of_the_tree() -> Iterator[None]:
    """A replay finds programs as they are installed; here they are imported by their folders already."""
    folders = {"ps": "ps_server", "worker": "worker", "coordinator": "coordinator"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dbelief.simulate.replay.programs.package_of", folders.__getitem__)
        yield


@pytest.fixture(params=["quadratic", "network"])
def problem(request: pytest.FixtureRequest) -> Problem:
    """Each of the problems of the test's module."""
    found: Problem = request.module.PROBLEMS[request.param]
    return found
