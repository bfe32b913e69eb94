"""The one small web server: what a process offers by HTTP, whoever calls and however badly.

Few connections at a time, each for a few seconds: a caller that says nothing, or a byte a second, or never stops, costs
a thread until its time is over, and keeps nobody else waiting longer than that.
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
from dbelief.process.console import host_and_port
from dbelief.security import may_listen
from dbelief.telemetry.http_hosts import HOSTS, is_meant, own_names

CONNECTIONS = 32
"""Open at a time; one more is hung up on."""
CONNECTION_S = 10.0
"""How long a connection may last, from its first byte to its last."""
_LOOK_S = 0.5

Application = Callable[..., Any]
"""As WSGI has it (PEP 3333)."""


class WebServer:
    """Serves an application until it is closed.

    Parameters
    ----------
    listen
        `host:port`; port 0 takes any that is free.
    application
        Called in a thread for each request; the server reads no more than its head.
    what
        How messages call it: "metrics", "the status page".
    context
        For HTTPS; None: plain HTTP, which may be listened for on this machine alone, and answers to the names of
        `dbelief.telemetry.http_hosts` only.

    Raises
    ------
    Mistake
        Nothing can listen there, or other machines reach it and it would be plain.
    """

    def __init__(self, listen: str, application: Application, what: str, context: ssl.SSLContext | None = None) -> None:
        host, port = host_and_port(listen)
        if context is None:
            may_listen(listen)
        try:
            self._server = _Server(host.strip("[]"), port, context)
        except (OSError, OverflowError) as error:
            raise UserError(f"{what} cannot be served on {listen}: {error}") from error
        self._server.set_app(application)
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if context else 'http'}://{host}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name=what, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more; connections that are open are cut."""
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
        self.names = own_names(host) if context is None else None  # a certificate says whose names they are
        self._since: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, and ask no name server for this host's name, as the library's would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; its handshake is its own thread's business."""
        try:
            call, caller = super().get_request()
        except OSError as error:
            time.sleep(_LOOK_S * (error.errno in (errno.EMFILE, errno.ENFILE)))  # else it would be asked at once again
            raise
        call.settimeout(CONNECTION_S)
        if self._context is not None:
            call = self._context.wrap_socket(call, server_side=True, do_handshake_on_connect=False)
        return call, caller

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take in no more than so many at a time."""
        with self._guard:
            if len(self._since) >= CONNECTIONS:
                return False
            self._since[request] = time.monotonic()
            return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one call."""
        with contextlib.suppress(OSError):  # it hung up, or was cut, or speaks something else
            if self._context is not None:
                request.do_handshake()
            super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._guard:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Every now and then: cut what lasts too long."""
        self.cut(CONNECTION_S)

    def cut(self, older_than_s: float) -> None:
        """Cut connections that have been open for so long."""
        now_s = time.monotonic()
        with self._guard:
            late = [call for call, began_s in self._since.items() if now_s - began_s >= older_than_s]
        for call in late:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(call, socket.SHUT_RDWR)  # TLS's own would take its state from its thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: what strangers send is no error of ours."""


class _Answer(ServerHandler):
    http_version = "1.1"
    server_software = "dbelief"

    def log_exception(self, exc_info: Any) -> None:
        """Say what went wrong here; a caller that hung up or is too slow is no news."""
        if not isinstance(exc_info[1], OSError):
            super().log_exception(exc_info)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"  # one request a connection
    server_version, sys_version = "dbelief", ""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def handle(self) -> None:
        """Answer the one request."""
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
        elif self.parse_request() and self._is_meant():
            reads, writes = cast(Any, self.rfile), cast(Any, self.wfile)
            answer = _Answer(reads, writes, self.get_stderr(), self.get_environ(), multithread=True)
            answer.request_handler = self  # type: ignore[attr-defined]  # it logs through this
            answer.run(self.server.get_app())  # type: ignore[attr-defined]

    def _is_meant(self) -> bool:
        """Whether the request names this server; one that names another is answered so."""
        names = self.server.names  # type: ignore[attr-defined]
        if names is None or is_meant(self.headers.get_all("Host", []), names):
            return True
        self.send_error(421, f"this server is not called so: use an IP address or localhost, or set {HOSTS}")
        return False

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who looks is no news."""
