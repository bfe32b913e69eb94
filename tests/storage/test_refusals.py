"""A store that is slow, full, refuses access, or closes connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.data.files.locations import find_files
from dbelief.errors import StorageError, Unavailable
from dbelief.storage import backends
from dbelief.storage.backends import S3Backend
from dbelief.storage.object_store import ObjectStore, disconnect
from dbelief.url import parse_url
from tests.processes.conftest import wait_for
from tests.storage.proxy import Proxy
from tests.storage.s3_server import MISSING, WHY, S3Server
from tests.storage.site import Site

pytestmark = [pytest.mark.storage, pytest.mark.processes, pytest.mark.skipif(bool(MISSING), reason=WHY)]

URL = parse_url("s3://bucket/refused/object")


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that the environment names in the server's place."""
    made = Proxy(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    disconnect()
    yield made
    disconnect()
    made.close()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (507, "InsufficientStorage", "the store is full"),
        (507, "XMinioStorageFull", "the store is full"),
        (403, "AccessDenied", "access denied"),
        (403, "InvalidAccessKeyId", "access denied: the access key is not known there"),
        (403, "SignatureDoesNotMatch", "access denied: the secret key does not match"),
        (400, "OddOne", r"failed \(OddOne\)"),
    ],
)
def test_a_refusal_is_one_line(status: int, code: str, said: str, proxy: Proxy) -> None:
    proxy.answer = status, code
    with pytest.raises(StorageError, match=rf"^{URL}: {said}$"):
        ObjectStore(S3Backend()).replace(URL, b"content")


def test_data_without_rights_is_one_line(server: S3Server, proxy: Proxy) -> None:
    url = parse_url("s3://bucket/rights/part.txt")
    ObjectStore(S3Backend()).replace(url, b"x\t1\ny\t2\n")
    (file,) = find_files([url], Path(), ".txt")
    proxy.answer = 403, "AccessDenied"
    with file.open() as opened, pytest.raises(StorageError, match=rf"^{url}: access denied$"):
        opened.read()
    with pytest.raises(StorageError, match=r"^s3://bucket/rights: access denied$"):
        find_files([url.parent], Path(), ".txt")


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (503, "SlowDown", "it is busy, and asks for fewer requests"),
        (500, "InternalError", "an error inside the store"),
        (409, "ConditionalRequestConflict", "another request for this object is in progress"),
    ],
)
def test_what_passes_is_repeated(status: int, code: str, said: str, proxy: Proxy) -> None:
    def sleep(seconds: float) -> None:
        proxy.answer = None

    proxy.answer = status, code
    assert ObjectStore(S3Backend(), sleep=sleep).create(URL.parent / code, b"content")
    proxy.answer = status, code
    with pytest.raises(Unavailable, match=rf"^{URL}: {said}, in 1 attempt$"):
        ObjectStore(S3Backend(), patience_s=0.0).read(URL)


def test_closed_connections_are_opened_again(proxy: Proxy) -> None:
    store = ObjectStore(S3Backend(), sleep=lambda seconds: None)
    proxy.closes = 2
    store.replace(URL, b"content")
    proxy.closes = 1
    with store.upload(URL) as file:
        file.write(bytes(9 << 20))
    assert len(store.read(URL)) == 9 << 20


@pytest.mark.long
def test_a_job_outlasts_a_store_that_is_slow_and_then_full(proxy: Proxy, site: Site) -> None:
    proxy.delay_s = 0.2
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "limits.epochs=12", wait_s=0.05)
    site.until_trained(1000)
    proxy.answer = 507, "InsufficientStorage"
    log = next(site.disk.glob("dbelief-run-far-*")) / "logs" / "coordinator.log"
    wait_for(lambda: "could not be written; the set before it" in log.read_text(), "a failed set")
    proxy.answer, proxy.delay_s = None, 0.0
    assert train.ends() == 0, site.log()
    text = site.store.read(site.url / "logs" / "coordinator.log").decode()
    assert ": the store is full" in text
    assert text.count("files of the run cannot be uploaded, and are later: ") <= 1
    assert site.summary()["samples"] == 12 * 1257
    assert site.events("snapshot_failed")


def full_port() -> tuple[int, list[socket.socket]]:
    """A port of loopback on which no connection is made: its queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    held = [listener]
    for _ in range(4):
        held.append(socket.socket())
        held[-1].setblocking(False)
        held[-1].connect_ex(listener.getsockname())
    return int(listener.getsockname()[1]), held


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("127.0.0.1:9", r"cannot connect to http://127\.0\.0\.1:9 \(refused\), in \d attempts?"),
        (
            "no-host.invalid:9",
            r"cannot connect to http://no-host\.invalid:9 \(unknown host\), in \d attempts?",
        ),
        ("full", r"timeout: no connection to http://127\.0\.0\.1:\d+, in \d attempts?"),
        ("silent", r"timeout: no answer from http://127\.0\.0\.1:\d+, in \d attempts?"),
    ],
)
def test_a_dead_endpoint_is_named(
    where: str, said: str, server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[socket.socket] = []
    if where == "full":
        port, held = full_port()
    elif where == "silent":
        held = [socket.create_server(("127.0.0.1", 0))]
        port = held[0].getsockname()[1]
        monkeypatch.setattr(backends, "ANSWER_S", 3.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{where if ':' in where else f'127.0.0.1:{port}'}")
    disconnect()
    try:
        with pytest.raises(Unavailable, match=rf"^s3://bucket/t\.csv: {said}$"):
            find_files(["s3://bucket/t.csv"], Path(), ".csv")
        with pytest.raises(Unavailable, match=rf"^s3://bucket/t\.csv: {said}$"):
            ObjectStore(S3Backend()).create(parse_url("s3://bucket/t.csv"), b"of a run")
    finally:
        disconnect()
        for one in held:
            one.close()
    if held:
        assert f"s3://bucket/t.csv: http://127.0.0.1:{port} does not answer yet" in caplog.messages
