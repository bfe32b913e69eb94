"""Errors of the client of a real server: addresses, passwords, servers that do not answer."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.process.clock import ManualClock, SystemClock
from dbelief.registry import EmbeddedRegistry, open_registry
from dbelief.registry.server import RedisRegistry
from dbelief.registry.url import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:secret@localhost:6379/0", "redis://localhost:6379/0"),
        ("rediss://me:secret@[::1]:6380", "rediss://[::1]:6380"),
        ("unix://:secret@/tmp/a.sock?db=1", "unix:///tmp/a.sock"),
        ("redis://host/0?password=secret&ssl_password=secret", "redis://host/0"),
        # a password that should have been percent-coded: nothing is shown but the scheme
        ("redis://:sec/ret@host", "redis://..."),
        ("redis://:sec?ret@host", "redis://..."),
        ("redis://:sec#ret@host", "redis://..."),
        ("redis://:sec@ret@host", "redis://..."),
        ("redis://host?password=sec@ret", "redis://..."),
        ("redis://me:secret", "redis://..."),
        ("secret", "(not a URL)"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "http://h:1", "redis://:pw@h:port", "redis://h:1?db=pw", "unix:///s?unknown=pw"],
)
def test_a_wrong_address_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UserError, match=r"redis://, rediss:// or unix:///path") as caught:
        open_registry(url, ManualClock())
    assert "pw" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_unreachable_is_tried_until_patience_ends(tmp_path: Path) -> None:
    clock = ManualClock(autojump=True)
    registry = RedisRegistry(f"unix://:secret@{tmp_path}/none.sock", clock, patience_s=3.0)
    with pytest.raises(Unavailable, match=rf"registry unix://{tmp_path}/none.sock does not answer: ") as caught:
        registry.read("j")
    assert "secret" not in str(caught.value)
    assert 2.0 < clock.now() <= 3.0


def test_a_silent_server_does_not_hold_the_caller(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf.sock"))
        deaf.listen()
        registry = RedisRegistry(
            f"unix://{tmp_path}/deaf.sock", ManualClock(autojump=True), timeout_s=0.02, patience_s=0.1
        )
        with pytest.raises(Unavailable):
            registry.acquire("j", "a", 1.0)
        registry.close()


def test_tls_is_asked_for_by_the_scheme() -> None:
    registry = open_registry("rediss://localhost:6380", ManualClock())
    assert isinstance(registry, RedisRegistry)
    assert registry._client.connection_pool.connection_class.__name__ == "SSLConnection"


@pytest.fixture
def guarded(server: EmbeddedRegistry) -> Iterator[str]:
    """URL of the server while it demands a password."""
    with Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "secret")
        yield server.url
        admin.config_set("requirepass", "")


@pytest.mark.processes
def test_a_refused_login_is_a_mistake_and_not_tried_again(guarded: str) -> None:
    clock = ManualClock(autojump=True)
    for url in (guarded, guarded.replace("unix://", "unix://:wrong@")):
        registry = RedisRegistry(url, clock)
        with pytest.raises(UserError, match=r"refuses the login") as caught:
            registry.acquire("j", "a", 1.0)
        assert "wrong@" not in str(caught.value)
        registry.close()
    assert clock.now() == 0.0
    right = RedisRegistry(guarded.replace("unix://", "unix://:secret@"), clock)
    assert right.acquire("login", "a", 1.0) == 1
    right.close()


@pytest.mark.processes
def test_an_error_of_the_server_names_the_registry(server: EmbeddedRegistry) -> None:
    with Redis.from_url(server.url) as admin:
        admin.set("dbelief:{wrong}:values", "no hash")
    registry = RedisRegistry(server.url, SystemClock())
    with pytest.raises(RuntimeFailure, match=r"registry unix://.*: WRONGTYPE"):
        registry.read("wrong")
    registry.close()


@pytest.mark.processes
def test_a_server_that_forgot_its_scripts_is_taught_again(server: EmbeddedRegistry) -> None:
    registry = RedisRegistry(server.url, SystemClock())
    registry.raise_epoch("scripts", 4)
    with Redis.from_url(server.url) as admin:
        admin.script_flush()
    assert registry.acquire("scripts", "a", 30.0) == 5
    registry.close()


@pytest.mark.processes
def test_keys_of_a_job_share_a_cluster_slot(server: EmbeddedRegistry) -> None:
    registry = RedisRegistry(server.url, SystemClock())
    epoch = registry.acquire("slots", "a", 30.0)
    assert epoch is not None
    registry.write("slots", epoch, {"state": b"ready"})
    registry.close()
    with Redis.from_url(server.url) as admin:
        keys = sorted(key.decode() for key in admin.scan_iter("*slots*"))
    assert keys == ["dbelief:{slots}:epoch", "dbelief:{slots}:leader", "dbelief:{slots}:values"]


def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    registry = RedisRegistry("redis://none.invalid:6379", SystemClock(), patience_s=0.0)
    why = "the host name 'none.invalid' is not known: Name or service not known"
    with pytest.raises(Unavailable, match=rf"^registry redis://none\.invalid:6379 does not answer: {why}$"):
        registry.holder("job")
