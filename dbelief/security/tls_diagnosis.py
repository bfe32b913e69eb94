"""Diagnosis of a peer that does not respond, where gRPC reports no reason: one TLS handshake of our own."""

from __future__ import annotations

import socket
import ssl

from dbelief.process.console import host_and_port

from .credentials import AUTHORITY, SERVER
from .identity import current

PATIENCE_S = 2.0


def why_not(address: str) -> str:
    """Short description of the fault between this process and `host:port`; "" where none is found.

    Cost: up to `PATIENCE_S` seconds, twice.
    """
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
    except OSError as error:
        return "" if isinstance(error, TimeoutError | socket.gaierror) else str(error.strerror or error)
    return "" if mine else "it speaks TLS: give --credentials"


def _any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
