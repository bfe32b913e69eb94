"""Proxies of the environment: who uses one, and what a message says of one that is in the way. No port is opened."""

from __future__ import annotations

import socket
from typing import Any

import click
import pytest
from click.testing import CliRunner

from coordinator.command import command as coordinator_command
from dbelief.cli import operator_commands
from dbelief.cli.role_options import proxy_option
from dbelief.errors import UserError
from dbelief.rpc import diagnosis, proxy
from dbelief.rpc.channel import open_channel
from dbelief.rpc.transport import Transport, use_transport
from ps_server.command import command as shard_command
from worker.command import command as worker_command

VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")
FAR = "coordinator.example:7070"
every_variable = pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(proxy.ENABLED, "")  # restored afterwards, whatever a test sets


class Recorder(Transport):
    """Records the options of channels."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def channel(self, address: str, options: Any, credentials: Any) -> Any:
        self.options = dict(options)


@every_variable
@pytest.mark.parametrize(
    ("wanted", "address", "uses"),
    [("", FAR, 0), ("0", FAR, 0), ("1", FAR, 1), ("true", FAR, 1),
     ("", "127.0.0.1:1", 0), ("1", "127.0.0.1:1", 0), ("1", "localhost:1", 0), ("1", "[::1]:1", 0)],
)  # fmt: skip
def test_a_channel_uses_one_where_that_is_said_and_never_to_loopback(
    monkeypatch: pytest.MonkeyPatch, variable: str, wanted: str, address: str, uses: int
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv(proxy.ENABLED, wanted)
    monkeypatch.setattr("dbelief.rpc.channel.token_channel", lambda channel, text: channel)
    with use_transport(recorder := Recorder()):
        open_channel(address)
    assert recorder.options["grpc.enable_http_proxy"] == uses


@pytest.mark.parametrize(
    "command",
    [worker_command, shard_command, coordinator_command, *operator_commands.COMMANDS],
    ids=lambda own: own.name,
)
def test_every_command_that_opens_channels_to_other_hosts_has_the_option(command: click.Command) -> None:
    assert "--proxy" in [name for parameter in command.params for name in parameter.opts]


def test_the_option_holds_for_children() -> None:
    @click.command
    @proxy_option
    def command() -> None:
        pass

    assert CliRunner().invoke(command, []).exit_code == 0
    assert not proxy.enabled()
    assert CliRunner().invoke(command, ["--proxy"]).exit_code == 0
    assert proxy.enabled()


@pytest.mark.parametrize(
    ("environment", "address", "found"),
    [
        ({}, FAR, None),
        ({"http_proxy": "http://one:1"}, FAR, ("http_proxy", "one", 1)),
        ({"http_proxy": "http://one:1", "grpc_proxy": "two:2"}, FAR, ("grpc_proxy", "two", 2)),
        ({"http_proxy": "http://one:1", "no_proxy": "other, .Example"}, FAR.upper(), None),
        ({"http_proxy": "http://one:1", "no_proxy": "other, .Org"}, FAR, ("http_proxy", "one", 1)),
        ({"http_proxy": "http://one:1", "no_proxy": "other, .Example"}, FAR, None),
        ({"https_proxy": "one:1", "no_proxy": "example", "no_grpc_proxy": "x"}, FAR, ("https_proxy", "one", 1)),
        ({"http_proxy": "http://one:1"}, "localhost:1", None),
    ],
)  # fmt: skip
def test_the_variable_that_names_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], address: str, found: Any
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    between = proxy.find(address)
    assert (between and (between[0], between[1].hostname, between[1].port)) == found


def test_a_wrong_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'nowhere' is no address"):
        proxy.find("nowhere")


# -- diagnosis -----------------------------------------------------------------------------------------------


def connected(monkeypatch: pytest.MonkeyPatch, answer: bytes | OSError) -> tuple[list[Any], socket.socket]:
    """Replace connections by one whose other end has sent `answer`; gives the places asked for, and that end."""
    near, far = socket.socketpair()
    places: list[Any] = []

    def connect(place: Any, timeout_s: float) -> socket.socket:
        places.append(place)
        if isinstance(answer, OSError):
            raise answer
        return near

    if not isinstance(answer, OSError):
        far.sendall(answer)
    monkeypatch.setattr(socket, "create_connection", connect)
    return places, far


REFUSED = ConnectionRefusedError(111, "Connection refused")
UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the proxy office:3128 of https_proxy refuses: HTTP/1.1 403 Forbidden"),
        (b"HTTP/1.1 200 Connection established\r\n\r\n", ""),
        (REFUSED, "the proxy office:3128 of https_proxy: Connection refused"),
        (UNKNOWN, "the proxy office:3128 of https_proxy: the host name 'office' is not known: Name or service not "
                  "known"),
    ],
)  # fmt: skip
def test_a_proxy_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch, answer: bytes | OSError, why: str) -> None:
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@office:3128")
    proxy.enable()
    places, far = connected(monkeypatch, answer)
    with far:
        assert diagnosis.why_not(FAR) == why
        assert places == [("office", 3128)]
        if isinstance(answer, bytes):
            asked = far.recv(1000)
            assert asked.startswith(f"CONNECT {FAR} HTTP/1.1\r\nHost: {FAR}\r\n".encode())
            assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n\r\n" in asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (REFUSED, "Connection refused"),
        (UNKNOWN, "the host name 'coordinator.example' is not known: Name or service not known"),
        (TimeoutError(), ""),
    ],
)
@pytest.mark.parametrize("variable", ["", "http_proxy"])
def test_a_peer_that_is_called_directly(
    monkeypatch: pytest.MonkeyPatch, answer: OSError, why: str, variable: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "http://office")
        why = f"{why}; the proxy office:443 of http_proxy is used with --proxy only".removeprefix("; ")
    places, far = connected(monkeypatch, answer)
    with far:
        assert diagnosis.why_not(FAR) == why
    assert places == [("coordinator.example", 7070)]
