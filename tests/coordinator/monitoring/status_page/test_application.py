"""Answers of the status page's server: called as WSGI calls it, and once through the real web server."""

from __future__ import annotations

import base64
import json
import math
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from coordinator.monitoring.status_page import application as module
from coordinator.monitoring.status_page.application import StatusPage
from dbelief.security import Credentials
from dbelief.telemetry.http_server import WebServer

Answer = tuple[str, dict[str, str], bytes]


def call(page: StatusPage, path: str = "/", method: str = "GET", **environ: str) -> Answer:
    """One request, with what WSGI wants of both sides checked."""
    said: list[tuple[str, list[tuple[str, str]]]] = []
    asked: dict[str, Any] = {
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "QUERY_STRING": "",
        "SCRIPT_NAME": "",
        **environ,
    }
    setup_testing_defaults(asked)
    answer = validator(page)(asked, lambda status, headers, error=None: said.append((status, headers)))  # type: ignore[arg-type]
    body = b"".join(answer)
    answer.close()  # type: ignore[attr-defined]
    ((status, headers),) = said
    return status, dict(headers), body


@pytest.fixture
def page() -> StatusPage:
    page = StatusPage()
    page.tell = lambda: {"job": "digits", "loss": math.nan, "members": []}
    return page


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript"), ("/icon.svg", "image/svg")],
)
def test_the_pages_files_are_served(page: StatusPage, path: str, kind: str) -> None:
    status, headers, body = call(page, path)
    assert (status, headers["Content-Length"]) == ("200 OK", str(len(body)))
    assert headers["Content-Type"].startswith(kind)
    assert body
    assert call(page, path, "HEAD") == (status, headers, b"")


def test_the_status_is_json_without_nan(page: StatusPage) -> None:
    status, headers, body = call(page, "/status.json")
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == ("200 OK", "application/json", "no-store")
    assert json.loads(body) == {"job": "digits", "loss": None, "members": []}


def test_before_there_is_a_job_there_is_no_status() -> None:
    status, _, body = call(StatusPage(), "/status.json")
    assert (status, body) == ("503 Service Unavailable", b"503 Service Unavailable: there is no job yet\n")
    assert call(StatusPage())[0] == "200 OK"


def test_however_many_ask_the_job_is_asked_now_and_then(page: StatusPage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def tell() -> dict[str, int]:
        asked.append(1)
        return {"asked": len(asked)}

    page.tell = tell
    monkeypatch.setattr(module, "FRESH_S", math.inf)
    page._cached_s = -math.inf
    assert {call(page, "/status.json")[2] for _ in range(100)} == {b'{"asked": 1}'}
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    assert call(page, "/status.json")[2] == b'{"asked": 2}'


@pytest.mark.parametrize("path", ["/x", "", "//", "/../page.js", "/page.py", "/status.json/", "/application.py"])
def test_nothing_else_is_there(page: StatusPage, path: str) -> None:
    status, _, body = call(page, path)
    assert (status, body.count(b"\n")) == ("404 Not Found", 1)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/status.json"])
def test_it_can_only_be_looked_at(page: StatusPage, method: str, path: str) -> None:
    status, headers, body = call(page, path, method)
    assert (status, headers["Allow"], body.count(b"\n")) == ("405 Method Not Allowed", "GET, HEAD", 1)


def test_nothing_comes_from_elsewhere_and_nothing_is_markup() -> None:
    sources = {
        name: files("coordinator.monitoring.status_page").joinpath(name).read_text()
        for name in ("page.html", "page.css", "page.js")
    }
    html, script = sources["page.html"], sources["page.js"]
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert sorted(links) == ["icon.svg", "page.css", "page.js", "status.json"]
    addresses = [address for text in sources.values() for address in re.findall(r"\w+://[^\"')\s]+", text)]
    assert addresses == ["http://www.w3.org/2000/svg"], "which is a name, and nobody is called"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
    assert not re.search(r"<script>|<style|\son\w+=|style=", html), "what the policy would not let run"
    _, headers, _ = call(StatusPage())
    policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}


# -- who may look --------------------------------------------------------------------------------------------------


def login(token: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


@pytest.mark.parametrize("path", ["/", "/page.js", "/status.json", "/x"])
def test_with_credentials_people_log_in_with_their_token(ours: Callable[[str], Credentials], path: str) -> None:
    page = StatusPage(ours("coordinator"))
    page.tell = dict
    for role in ("operator", "viewer"):
        status, _, _ = call(page, path, HTTP_AUTHORIZATION=login(ours(role).token))
        assert status == ("404 Not Found" if path == "/x" else "200 OK")
    token = ours("operator").token
    refused = [
        "",
        login(""),
        login(token[:-1]),
        login(ours("worker").token),
        login(ours("ps").token),
        f"Bearer {token}",
        f"Basic {token}",
        "Basic",
        "Basic " + base64.b64encode(b"\xff\xfe").decode(),
        "Basic " + base64.b64encode(token.encode()).decode(),
    ]
    for authorization in refused:
        status, headers, body = call(page, path, HTTP_AUTHORIZATION=authorization)
        assert (status, body.count(b"\n")) == ("401 Unauthorized", 1), authorization
        assert headers["WWW-Authenticate"].startswith("Basic realm=")
        assert token.encode() not in body


@pytest.fixture
def sealed(ours: Callable[[str], Credentials]) -> Iterator[str]:
    mine = ours("coordinator")
    page = StatusPage(mine)
    page.tell = lambda: {"job": "digits"}
    server = WebServer("127.0.0.1:0", page, "the status page", mine.web_context())
    yield server.url
    server.close()


@pytest.mark.processes
def test_a_browser_needs_no_certificate_but_a_token(
    sealed: str, ours: Callable[[str], Credentials], folders: dict[str, Path]
) -> None:
    context = ssl.create_default_context(cafile=str(folders["ours"] / "viewer" / "ca.crt"))
    request = urllib.request.Request(f"{sealed}status.json", headers={"Authorization": login(ours("viewer").token)})
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        assert json.load(answer) == {"job": "digits"}
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{sealed}status.json", context=context, timeout=60)
    refused.value.close()


@pytest.mark.processes
def test_a_head_without_end_is_refused_in_one_line(page: StatusPage) -> None:
    server = WebServer("127.0.0.1:0", page, "the status page")
    try:
        for headers, code in (({"A": "a" * 70_000}, 431), ({f"A{number}": "a" for number in range(200)}, 431)):
            request = urllib.request.Request(f"{server.url}status.json", headers=headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            with refused.value as answer:
                assert (answer.code, answer.read().count(b"\n")) == (code, 1)
                assert answer.headers["Server"].strip() == "dbelief"
    finally:
        server.close()
