"""What tests of the coordinator begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.core.states import DatasetSizes
from dbelief.core.layout import Layout
from dbelief.job import Job
from tests.coordinator.world import OTHER_LAYOUT, SHAPE, World, make_job


@pytest.fixture(scope="session")
def a_job() -> Callable[..., Job]:
    return make_job


@pytest.fixture(scope="session")
def a_world() -> Callable[..., World]:
    """Give a_world(strategy__lease=20, ...): a job in which nobody has joined yet."""

    def make(shape: DatasetSizes = SHAPE, **changes: Any) -> World:
        return World(make_job(**changes), shape)

    return make


@pytest.fixture(scope="session")
def other_layout() -> Layout:
    return OTHER_LAYOUT
