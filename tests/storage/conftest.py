from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import operating
from tests.storage.s3_server import S3Server, s3_server
from tests.storage.site import Site


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def site(server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with operating(tmp_path) as operator:
        made = Site(operator, request.node.name)
        yield made
    made.close()
