from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url, parse_url
from tests.dbelief.rundir.stored.memory_store import FaultyMemory


@pytest.fixture
def backend() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
def store(backend: FaultyMemory) -> ObjectStore:
    return ObjectStore(backend, patience_s=0.0)


@pytest.fixture
def run(tmp_path: Path) -> Url:
    """The prefix of a run that no other test has."""
    return parse_url(f"memory://stored/{tmp_path.parent.name}/{tmp_path.name}/far")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A coordinator's folder."""
    made = tmp_path / "work"
    made.mkdir()
    return made
