"""Proxies of the environment: no channel uses one, unless `--proxy` or `DBELIEF_PROXY` says so, and none to loopback.

gRPC takes the first of `grpc_proxy`, `https_proxy` and `http_proxy`; hosts that `no_grpc_proxy`, else `no_proxy`, ends
with are called directly.
"""

from __future__ import annotations

import os
from urllib.parse import SplitResult, urlsplit

from dbelief.process.terminal.console import host_and_port
from dbelief.security import loopback_address

ENABLED = "DBELIEF_PROXY"
"""Environment variable: in it, the option holds for scripts and other children of a command too."""
_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def enable() -> None:
    """Use the environment's proxy from now on, in this process and its children."""
    os.environ[ENABLED] = "1"


def enabled() -> bool:
    """Whether channels use the environment's proxy."""
    return os.environ.get(ENABLED, "").lower() in ("1", "true", "t", "yes", "y", "on")


def find(address: str) -> tuple[str, SplitResult] | None:
    """The variable and the URL of the proxy that the environment has for `host:port`; None where it has none.

    Raises
    ------
    UserError
        The address is invalid.
    """
    host, _ = host_and_port(address)
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if variable is None or loopback_address(address):
        return None
    text = os.environ[variable]
    direct = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    if any(end.strip() and host.lower().endswith(end.strip().lower()) for end in direct.split(",")):
        return None
    return variable, urlsplit(text if "://" in text else f"http://{text}")
