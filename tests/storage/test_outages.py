"""A store that is away while a job trains, and two coordinators of one job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.errors import UNFINISHED
from dbelief.monitor.status import JobLocation, get_status
from dbelief.registry import EmbeddedRegistry, embedded_available
from tests.processes.conftest import a_free_address, wait_for
from tests.storage.s3_server import MISSING, WHY, S3Server
from tests.storage.site import Site

pytestmark = [
    pytest.mark.storage,
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=WHY),
]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    if not embedded_available():
        pytest.skip("no embedded registry on this platform")
    with EmbeddedRegistry(tmp_path / "registry") as made:
        yield made.url


def test_training_goes_on_while_the_store_is_away(site: Site, server: S3Server) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "limits.epochs=25", wait_s=0.05)
    site.until_trained(1)
    folder = next(site.disk.glob("dbelief-run-far-*"))
    address, log = (folder / "address").read_text(), folder / "logs" / "coordinator.log"
    server.stop()
    try:
        before = samples_at(address)
        wait_for(lambda: "could not be written" in log.read_text(), "a set that fails")
        after = samples_at(address)
    finally:
        server.start()
    assert after > before + 1000, "it trained while the store was away"
    assert train.ends() == 0, site.log()
    lines = site.store.read(site.url / "logs" / "coordinator.log").decode()
    assert lines.count("files of the run cannot be uploaded, and are later: ") == 1
    assert lines.count(f"files of the run are uploaded again, to {site.url}") == 1
    assert "could not be written; the set before it stays valid: " in lines
    assert site.summary()["samples"] == 25 * 1257
    assert site.summary()["died"] == []


def samples_at(address: str) -> int:
    """Samples that the coordinator at an address counts."""
    status = get_status(JobLocation(address))
    assert isinstance(status, dict)
    return int(status["samples"])


def test_a_suspended_coordinator_is_replaced_and_writes_nothing_more(site: Site, registry: str) -> None:
    address = a_free_address()
    coordinator = ("coordinator", str(site.job), "--registry", registry, "--listen", address)
    first = site.dbelief(*coordinator, "--name", "first")
    first.said("(leader epoch)")
    members = [site.dbelief(role, "--coordinator", address, wait_s=0.05) for role in ("ps", "ps", "worker", "worker")]
    site.until_trained(1)
    first.process.send_signal(signal.SIGSTOP)
    # The port is the suspended process's: the members find the next one by its own address.
    second = site.dbelief(*coordinator[:-1], "127.0.0.1:0", "--name", "second")
    second.said("(taking over from another coordinator)")
    pieces = {url: site.store.read(url) for url in site.store.list(site.url / "events")}
    first.process.send_signal(signal.SIGCONT)
    assert first.ends() == UNFINISHED
    assert "another coordinator " in first.log.read_text().splitlines()[-1]
    after = {url: site.store.read(url) for url in site.store.list(site.url / "events")}
    assert {url: after[url] for url in pieces} == pieces
    # A piece in transfer when it was suspended, and the lines appended until it found the second one.
    assert len(after) <= len(pieces) + 2
    wait_for(lambda: site.events("takeover"), "the events of the second")
    assert site.events("takeover")[0]["state"] == "ready"
    for process in (*members, second):
        process.kill()
