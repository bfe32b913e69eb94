"""HTTP resources for a browser: the page's files, and the job's status as JSON, which the page requests."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from dbelief.process.runtime import runtime
from dbelief.rundir.json_values import plain
from dbelief.security import PERSONS, Credentials

FRESH_S = 0.5
"""Minimum seconds between two status queries to the job, whatever the number of requests."""
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_STATUS = "/status.json"
_HEADERS = [
    # Only resources of this server, and nothing inline: a job name that contains a script is not executed.
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]

Environ = Mapping[str, Any]


class StatusPage:
    """WSGI application of the status page.

    Parameters
    ----------
    credentials
        Credentials of this process: users then log in with a person's token as password, under any name. None: no
        login is required.

    Attributes
    ----------
    `tell`
        Returns the status, as `dbelief.monitor.status.to_dict` makes it, with curves; None: there is no job yet.
    """

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.tell: Callable[[], Mapping[str, Any]] | None = None
        self._credentials = credentials
        self._files = {
            path: (files(__package__).joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()
        }
        self._lock = runtime.lock()
        self._cached = b""
        self._cached_s = -FRESH_S

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        status, body, headers = self._answer(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body))), *_HEADERS])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: Environ) -> tuple[str, bytes, list[tuple[str, str]]]:
        if not self._may_look(environ.get("HTTP_AUTHORIZATION", "")):
            wanted = [("WWW-Authenticate", 'Basic realm="dbelief", charset="UTF-8"')]
            return _line("401 Unauthorized", "log in with an operator's or a viewer's token as password", wanted)
        path = environ.get("PATH_INFO", "")
        if path not in (*self._files, _STATUS):
            return _line("404 Not Found", "there is / and /status.json")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _line("405 Method Not Allowed", "this can only be looked at", [("Allow", "GET, HEAD")])
        if path == _STATUS:
            return self._status()
        body, kind = self._files[path]
        return "200 OK", body, [("Content-Type", kind)]

    def _status(self) -> tuple[str, bytes, list[tuple[str, str]]]:
        tell = self.tell
        if tell is None:
            return _line("503 Service Unavailable", "there is no job yet", [("Retry-After", "1")])
        with self._lock:
            if runtime.monotonic() - self._cached_s >= FRESH_S:
                self._cached = json.dumps(plain(tell()), allow_nan=False).encode()
                self._cached_s = runtime.monotonic()
            return "200 OK", self._cached, [("Content-Type", "application/json")]

    def _may_look(self, authorization: str) -> bool:
        if self._credentials is None:
            return True
        way, _, login = authorization.partition(" ")
        if way.lower() != "basic":
            return False
        try:
            _, _, token = base64.b64decode(login, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return self._credentials.role_of(token) in PERSONS


def _line(status: str, why: str, headers: Iterable[tuple[str, str]] = ()) -> tuple[str, bytes, list[tuple[str, str]]]:
    return status, f"{status}: {why}\n".encode(), [("Content-Type", "text/plain; charset=utf-8"), *headers]
