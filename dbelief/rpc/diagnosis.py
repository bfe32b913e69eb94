"""Diagnosis of a peer that does not respond, where gRPC reports no reason: one connection of our own."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from urllib.parse import SplitResult, unquote

from dbelief.process.printable import printable
from dbelief.process.terminal.console import host_and_port, unknown_host
from dbelief.security import current
from dbelief.security.credentials import AUTHORITY, SERVER

from . import proxy

PATIENCE_S = 2.0
_PORT = 443
"""Of a proxy whose URL has none, as gRPC has it."""


def why_not(address: str) -> str:
    """Short description of the fault between this process and `host:port`; "" where none is found.

    Cost: up to `PATIENCE_S` seconds, three times.
    """
    between = proxy.find(address)
    if between is None:
        return _direct(address)
    variable, url = between
    named = f"the proxy {url.hostname}:{url.port or _PORT} of {variable}"
    if proxy.enabled():
        return _through(url, named, address)
    return "; ".join(filter(None, (_direct(address), f"{named} is used with --proxy only")))


def _through(url: SplitResult, named: str, address: str) -> str:
    """The fault of a proxy that gRPC connects through, as it does: by CONNECT."""
    login = b64encode(f"{unquote(url.username)}:{unquote(url.password or '')}".encode()) if url.username else b""
    head = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n".encode()
    head += b"Proxy-Authorization: Basic " + login + b"\r\n" if login else b""
    try:
        with socket.create_connection((url.hostname, url.port or _PORT), PATIENCE_S) as way:
            way.settimeout(PATIENCE_S)
            way.sendall(head + b"\r\n")
            status = way.recv(200).partition(b"\r\n")[0].decode(errors="replace")
    except socket.gaierror as error:
        return f"{named}: {unknown_host(url.hostname or '', error)}"
    except OSError as error:
        return f"{named}: {error.strerror or error}"
    return "" if status.partition(" ")[2].startswith("200") else f"{named} refuses: {printable(status) or 'it hung up'}"


def _direct(address: str) -> str:
    mine = current()
    context = mine.context(ssl.Purpose.SERVER_AUTH) if mine else _any_certificate()
    host, port = host_and_port(address)
    try:
        with socket.create_connection((host.strip("[]"), port), PATIENCE_S) as plain:
            plain.settimeout(PATIENCE_S)
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain, server_hostname=SERVER) as sealed:
                sealed.recv(1)  # a server that refuses a certificate reports that after the handshake
    except ssl.SSLCertVerificationError as error:
        authority = f"signed by {mine.folder / AUTHORITY}" if mine else "trusted"
        return f"its certificate is not {authority}, or not a server's ({error.verify_message})"
    except ssl.SSLError as error:
        speaks, said = "ALERT" in (error.reason or ""), (error.reason or "").replace("_", " ").lower()
        if mine is None:
            return "it speaks TLS: give --credentials" if speaks else ""
        return f"it refuses this process's certificate ({said})" if speaks else "it speaks no TLS"
    except UnicodeError:
        return "that is no host's name"
    except socket.gaierror as error:
        return unknown_host(host, error)
    except OSError as error:
        return "" if isinstance(error, TimeoutError) else str(error.strerror or error)
    return "" if mine else "it speaks TLS: give --credentials"


def _any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
