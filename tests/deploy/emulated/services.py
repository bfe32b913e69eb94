"""Services as ports of loopback: bytes are carried to the pod that is ready; the registry, which is one with TLS."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dbelief.registry import EmbeddedRegistry

Thing = dict[str, Any]


class ServicePort:
    """A port that leads to where `target` says, or refuses; `tls`: what connections begin with."""

    def __init__(self, target: Callable[[], int | Path | None], tls: ssl.SSLContext | None = None) -> None:
        self._target, self._tls = target, tls
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._server.accept()
                threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        there: socket.socket | None = None
        try:
            if self._tls is not None:
                here = self._tls.wrap_socket(here, server_side=True)
            target = self._target()
            if target is None:
                return
            there = socket.socket(socket.AF_UNIX if isinstance(target, Path) else socket.AF_INET)
            there.connect(str(target) if isinstance(target, Path) else ("127.0.0.1", target))
            back = threading.Thread(target=_pump, args=(there, here), daemon=True)
            back.start()
            _pump(here, there)
            back.join()
        except OSError:
            return
        finally:
            here.close()
            if there is not None:
                there.close()


class RegistryPod:
    """The registry's pod: a server of this host behind TLS, as its Secret says."""

    def __init__(self, secret: Thing, folder: Path) -> None:
        folder.mkdir(parents=True)
        files = {name: base64.b64decode(data) for name, data in secret["data"].items()}
        for name, data in files.items():
            (folder / name).write_bytes(data)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = EmbeddedRegistry(folder / "data")
        self._server.__enter__()
        password = files["registry.conf"].decode().partition("requirepass ")[2].split()[0]
        self._require(password)
        self.service = ServicePort(lambda: self._socket, context)

    @property
    def _socket(self) -> Path:
        return Path(unquote(self._server.url.removeprefix("unix://")))

    def _require(self, password: str) -> None:
        import redis

        redis.Redis(unix_socket_path=str(self._socket)).config_set("requirepass", password)

    def kill(self) -> None:
        """End it."""
        self.service.close()
        self._server.__exit__(None, None, None)


def _pump(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    for end in (source, to):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
