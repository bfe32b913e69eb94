"""Several hosts on this machine: network namespaces, joined by links of a given kind by the program `hostnet`.

`hostnet PREFIX N RATE_MBIT [--delay-ms D --loss-pct L] --seconds S` makes the namespaces PREFIXh1.. with the addresses
10.77.0.1.. on eth0, prints "ready", and takes all away when it is told to end, or S seconds later; it needs root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hosts(hostnet: Path, prefix: str, count: int, rate_mbit: float, seconds: float, *more: str) -> Iterator[None]:
    """The network, from its "ready" to the end of the block; `more` are words for hostnet."""
    command = [str(hostnet), prefix, str(count), f"{rate_mbit:g}", "--seconds", f"{seconds:g}", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{hostnet} did not make the hosts")
        yield
    finally:
        process.terminate()
        process.wait(30)


def inside(prefix: str, host: int) -> list[str]:
    """What comes before a command that is to run on a host, counted from 1."""
    return ["ip", "netns", "exec", f"{prefix}h{host}"]


def address(host: int) -> str:
    """Of a host, counted from 1."""
    return f"10.77.0.{host}"
