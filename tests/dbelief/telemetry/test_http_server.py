"""The web server with callers that are slow, silent, numerous, or do not speak HTTP."""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.process.terminal.console import host_and_port
from dbelief.security import Credentials, identity
from dbelief.telemetry import http_server
from dbelief.telemetry.http_server import CONNECTIONS, WebServer
from dbelief.telemetry.metrics import Metrics
from tests.processes.conftest import wait_for

pytestmark = pytest.mark.processes

Roles = Callable[[str], Credentials]


def hello(environment: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}".encode()]


@pytest.fixture
def server() -> Iterator[WebServer]:
    server = WebServer("127.0.0.1:0", hello, "a greeting")
    yield server
    server.close()


def read(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        return str(answer.read().decode())


def call(server: WebServer) -> socket.socket:
    return socket.create_connection(host_and_port(server.url.split("/")[2]), 10)


def hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


WRONG = {
    "nothing": b"\r\n",
    "half": b"GET\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "long": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "heads": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "version": b"GET / HTTP/9.9.9\r\n\r\n",
    "noise": bytes(range(256)) * 100,
}


@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG)
def test_malformed_request_ends_only_its_connection(server: WebServer, said: bytes) -> None:
    with call(server) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
        while not hung_up(stranger):
            pass
    assert read(server.url) == "GET /"


def test_a_crowd_is_hung_up_on_and_the_silent_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S", 3.0)
    server = WebServer("127.0.0.1:0", hello, "a greeting")
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        silent = [stack.enter_context(call(server)) for _ in range(CONNECTIONS)]
        wait_for(lambda: len(server._server._since) == CONNECTIONS or None, "all to be taken in")
        with call(server) as one_more:
            assert hung_up(one_more)
        assert all(hung_up(one) for one in silent)
        assert read(server.url) == "GET /"


def test_it_is_not_open_to_other_machines_without_tls(ours: Roles) -> None:
    with pytest.raises(UserError, match="without TLS and a token"):
        WebServer("0.0.0.0:0", hello, "a greeting")
    WebServer("0.0.0.0:0", hello, "a greeting", ours("coordinator").web_context()).close()


def test_metrics_with_credentials_are_for_those_of_the_job(
    ours: Roles, folders: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity._Identity, "loaded", ours("ps"))
    metrics = Metrics("ps")
    metrics.serve("127.0.0.1:0")
    try:
        with pytest.raises(OSError, match=r"EOF|certificate|reset|closed|pipe"):
            read(metrics.url, _context(ours("worker"), certificate=False))
        with pytest.raises(OSError, match=r"EOF|certificate|reset|closed|pipe"):
            read(metrics.url, _context(Credentials.read(folders["others"] / "prometheus")))
        assert "dbelief_ps_segments" in read(metrics.url, _context(ours("prometheus")))
        with pytest.raises(OSError, match=r"reset|closed|Connection"):
            read(metrics.url.replace("https", "http"))
    finally:
        metrics.close()


def _context(mine: Credentials, certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=mine.authority.decode())
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(mine.folder / "tls.crt", mine.folder / "tls.key")
    return context


def asked(server: WebServer, *hosts: str) -> str:
    """The first line of the answer to a request with these hosts."""
    with call(server) as connection:
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        connection.sendall(f"GET /here HTTP/1.1\r\n{lines}\r\n".encode())
        return connection.makefile("rb").read().decode()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:{port}", "localhost:8080", "LocalHost.", "[::1]:1", "10.1.2.3:9100", socket.gethostname()],
)
def test_it_answers_to_its_addresses_and_names(host: str, server: WebServer) -> None:
    assert asked(server, host.format(port=server.port)).endswith("GET /here")


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example"],
        ["evil.example:{port}"],
        ["127.0.0.1.evil.example"],
        ["localhost.evil.example"],
        ["127.0.0.1", "evil.example"],
        ["evil.example, 127.0.0.1"],
        ["[evil.example]"],
        [""],
    ],
)
def test_foreign_host_header_is_refused(hosts: list[str], server: WebServer) -> None:
    """Its pages would read the answer as their own."""
    answer = asked(server, *(host.format(port=server.port) for host in hosts))
    assert answer.startswith("HTTP/1.0 421 ")
    assert answer.endswith("use an IP address or localhost, or set DBELIEF_WEB_HOSTS\n")
    assert "GET /here" not in answer


def test_a_proxys_names_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBELIEF_WEB_HOSTS", "jobs.example, coordinator.dbelief.svc")
    server = WebServer("127.0.0.1:0", hello, "a greeting")
    for host in ("jobs.example", "coordinator.dbelief.svc:9100"):
        assert asked(server, host).endswith("GET /here")
    assert "421" in asked(server, "evil.example")
    server.close()
