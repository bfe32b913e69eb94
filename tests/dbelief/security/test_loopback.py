"""Tokens of calls on loopback: validity by user, address and time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dbelief.security import Loopback, Verdict, loopback, loopback_address

HERE = "127.0.0.1:7070"


def test_a_token_of_the_same_user_is_right() -> None:
    server, client = Loopback(HERE), Loopback(HERE)
    assert server.check(client.token()) is Verdict.RIGHT
    assert server.check_text(client.text()) is Verdict.RIGHT
    assert client.token() != client.token()


def test_a_text_is_sent_for_a_while_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**12
    monkeypatch.setattr(loopback, "time", SimpleNamespace(monotonic_ns=lambda: now))
    server, client = Loopback(HERE), Loopback(HERE)
    first = client.text()
    now += loopback.SAME_NS
    assert client.text() == first
    now += 1
    assert client.text() != first
    for number in range(2 * loopback.SEEN):
        now += 1
        assert server.check_text(client.token().hex()) is Verdict.RIGHT, number
        assert server.check_text(first) is Verdict.RIGHT
        assert len(server._right) <= loopback.SEEN
    assert server.check_text(first[:-1] + "x") is Verdict.WRONG


def test_a_token_for_another_address_is_wrong() -> None:
    server = Loopback(HERE)
    for other in ("127.0.0.1:7071", "127.0.0.2:7070", "[::1]:7070"):
        assert server.check(Loopback(other).token()) is Verdict.WRONG


def test_another_users_token_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Loopback(HERE)
    monkeypatch.setattr(loopback, "user_secret", lambda: bytes(32))
    assert server.check(Loopback(HERE).token()) is Verdict.WRONG


def test_token_from_before_a_reboot_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Loopback(HERE).token()
    monkeypatch.setattr(loopback, "_boot", lambda: "another boot")
    assert Loopback(HERE).check(old) is Verdict.WRONG


def test_token_from_before_the_server_started_is_refused() -> None:
    """Somebody else may have had the port then, and may have been sent it."""
    client = Loopback(HERE)
    old = client.token()
    server = Loopback(HERE)
    assert server.check(old) is Verdict.EARLIER
    assert server.check(client.token()) is Verdict.RIGHT


def test_a_token_that_is_bent_is_wrong() -> None:
    server = Loopback(HERE)
    token = server.token()
    for bit in range(8 * len(token)):
        bent = (int.from_bytes(token, "big") ^ 1 << bit).to_bytes(len(token), "big")
        assert server.check(bent) is Verdict.WRONG
    for wrong in ("", "me", "00", token.hex()[:-2], token.hex() + "00", "é" * 80):
        assert server.check_text(wrong) is Verdict.WRONG


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("localhost:1", "127.0.0.1:1"),
        ("[::1]:1", "[::1]:1"),
        ("[0:0::1]:1", "[::1]:1"),
        ("127.3.2.1:1", "127.3.2.1:1"),
        ("10.0.0.1:1", None),
        ("0.0.0.0:1", None),
        ("here.example:1", None),
    ],
)
def test_addresses_on_loopback(address: str, meant: str | None) -> None:
    assert loopback_address(address) == meant
