"""Host names that a plain web server accepts.

A web site may resolve its own name to this machine, and read the pages served here as its own (DNS rebinding). Such a
request has that site as its host. An IP address cannot be redirected.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable

HOSTS = "DBELIEF_WEB_HOSTS"
"""Environment variable: further names, of a reverse proxy or a service, separated by commas."""
_PORT = re.compile(r":\d*$")


def own_names(host: str) -> frozenset[str]:
    """Names of a server that listens on `host`: that, localhost, this machine's, and those of `DBELIEF_WEB_HOSTS`."""
    machine = socket.gethostname()
    more = os.environ.get(HOSTS, "").split(",")
    names = (host, "localhost", machine, machine.partition(".")[0], *more)
    return frozenset(_plain(name) for name in names) - {""}


def is_meant(hosts: Iterable[str], names: frozenset[str]) -> bool:
    """Whether these `Host` headers name a server of these names; a request without any is not from a browser."""
    return all(_is_address(host) or _plain(_PORT.sub("", host)) in names for host in hosts)


def _is_address(host: str) -> bool:
    bare = host[1:].partition("]")[0] if host.startswith("[") else _PORT.sub("", host)
    try:
        ipaddress.ip_address(bare.strip())
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")
