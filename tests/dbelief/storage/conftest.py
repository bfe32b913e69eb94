from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.storage.backends import FolderBackend, MemoryBackend, S3Backend, StoreBackend
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url, parse_url
from tests.storage.s3_server import MISSING, WHY, S3Server, s3_server

KINDS = (
    "memory",
    "file",
    pytest.param("s3", marks=[pytest.mark.storage, pytest.mark.skipif(bool(MISSING), reason=WHY)]),
)


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StoreBackend, Url]:
    """A backend of each kind, and an empty prefix there."""
    if request.param == "memory":
        return MemoryBackend(), parse_url(f"memory://{tmp_path.name}/{tmp_path.parent.name}")
    if request.param == "file":
        return FolderBackend(), parse_url(f"file://{tmp_path}/objects")
    request.getfixturevalue("server")
    return S3Backend(), parse_url(f"s3://bucket/{tmp_path.parent.name}/{tmp_path.name}")


@pytest.fixture
def store(place: tuple[StoreBackend, Url]) -> tuple[ObjectStore, Url]:
    return ObjectStore(place[0], patience_s=5.0), place[1]
