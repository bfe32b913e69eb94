"""Which names a plain web server answers to.

A page of any web site may have its own name point at this machine, and read what is served here as if it were its own
(DNS rebinding). Such a request names that site as its host. An IP address cannot be pointed elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable

HOSTS = "DBELIEF_WEB_HOSTS"
"""In the environment: more names, of a reverse proxy or a service, with commas between them."""
_PORT = re.compile(r":\d*$")


def own_names(host: str) -> frozenset[str]:
    """Names of a server that listens on `host`: that, localhost, this machine's, and those of `DBELIEF_WEB_HOSTS`."""
    machine = socket.gethostname()
    more = os.environ.get(HOSTS, "").split(",")
    names = (host, "localhost", machine, machine.partition(".")[0], *more)
    return frozenset(_plain(name) for name in names) - {""}


def is_meant(hosts: Iterable[str], names: frozenset[str]) -> bool:
    """Whether a request with these `Host` headers means a server of these names; without any no browser sent it."""
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
