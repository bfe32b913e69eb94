"""Small HTTP server of a process, robust against misbehaving clients.

Connections are limited in number and duration: a client that sends nothing, or a byte a second, or without end, costs a
thread until its timeout, and delays other clients no longer than that.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from dbelief.errors import UserError
from dbelief.process.terminal.console import host_and_port, unknown_host
from dbelief.security import may_listen
from dbelief.telemetry.http_hosts import HOSTS, is_meant, own_names

CONNECTIONS = 32
"""Maximum number of open connections; further ones are closed."""
CONNECTION_S = 10.0
"""Maximum duration of a connection, from its first byte to its last."""
_LOOK_S = 0.5

Application = Callable[..., Any]
"""A WSGI application (PEP 3333)."""


class WebServer:
    """HTTP server of one application, until it is closed.

    Parameters
    ----------
    listen
        `host:port`; port 0 selects any free one.
    application
        Called in a thread for each request; the server reads no more than its head.
    what
        Its name in messages: "metrics", "the status page".
    context
        For HTTPS; None: plain HTTP, which may listen on loopback only (see `may_listen`), and accepts only the names of
        `dbelief.telemetry.http_hosts`.

    Raises
    ------
    UserError
        The address cannot be bound, or other machines can reach it and it would be plain.
    """

    def __init__(self, listen: str, application: Application, what: str, context: ssl.SSLContext | None = None) -> None:
        host, port = host_and_port(listen)
        if context is None:
            may_listen(listen)
        try:
            self._server = _Server(host.strip("[]"), port, context)
        except (OSError, OverflowError) as error:
            why = unknown_host(host, error) if isinstance(error, socket.gaierror) else error
            raise UserError(f"{what} cannot be served on {listen}: {why}") from error
        self._server.set_app(application)
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if context else 'http'}://{host}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name=what, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; open connections are closed."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut(older_than_s=0.0)
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._context = context
        self.names = own_names(host) if context is None else None  # with TLS, the certificate proves the names
        self._since: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a DNS lookup of this host's name, which the library's method makes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the handshake runs in its own thread."""
        try:
            call, caller = super().get_request()
        except OSError as error:
            time.sleep(_LOOK_S * (error.errno in (errno.EMFILE, errno.ENFILE)))  # else it would be retried at once
            raise
        call.settimeout(CONNECTION_S)
        if self._context is not None:
            call = self._context.wrap_socket(call, server_side=True, do_handshake_on_connect=False)
        return call, caller

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept at most `CONNECTIONS` at a time."""
        with self._guard:
            if len(self._since) >= CONNECTIONS:
                return False
            self._since[request] = time.monotonic()
            return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        with contextlib.suppress(OSError):  # it was closed, or is of another protocol
            if self._context is not None:
                request.do_handshake()
            super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._guard:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Periodically: close connections that exceed their time."""
        self.cut(CONNECTION_S)

    def cut(self, older_than_s: float) -> None:
        """Close connections that are at least this old."""
        now_s = time.monotonic()
        with self._guard:
            late = [call for call, began_s in self._since.items() if now_s - began_s >= older_than_s]
        for call in late:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(call, socket.SHUT_RDWR)  # TLS's own would change its state in another thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        """No operation: a malformed request is no error of this process."""


class _Answer(ServerHandler):
    http_version = "1.1"
    server_software = "dbelief"

    def log_exception(self, exc_info: Any) -> None:
        """Log errors of the application; a client that disconnected or is too slow is not logged."""
        if not isinstance(exc_info[1], OSError):
            super().log_exception(exc_info)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"  # one request per connection
    server_version, sys_version = "dbelief", ""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def handle(self) -> None:
        """Handle the one request."""
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
        elif self.parse_request() and self._is_meant():
            reads, writes = cast(Any, self.rfile), cast(Any, self.wfile)
            answer = _Answer(reads, writes, self.get_stderr(), self.get_environ(), multithread=True)
            answer.request_handler = self  # type: ignore[attr-defined]  # it logs through this handler
            answer.run(self.server.get_app())  # type: ignore[attr-defined]

    def _is_meant(self) -> bool:
        """Whether the request names this server; else it gets status 421."""
        names = self.server.names  # type: ignore[attr-defined]
        if names is None or is_meant(self.headers.get_all("Host", []), names):
            return True
        self.send_error(421, f"this server is not called so: use an IP address or localhost, or set {HOSTS}")
        return False

    def log_message(self, format: str, *args: Any) -> None:
        """No operation: requests are not logged."""
