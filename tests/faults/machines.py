"""Several machines on this one: network namespaces, joined by a switch, whose links can be cut. Needs root and `ip`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SUBNET = "10.78.0"


class Machine:
    """One of them: `address` is what the others reach it by."""

    def __init__(self, prefix: str, number: int) -> None:
        self.space, self.address = f"{prefix}{number}", f"{SUBNET}.{number}"

    @property
    def inside(self) -> list[str]:
        """What comes before a command that is to run on it."""
        return ["ip", "netns", "exec", self.space]

    def cut(self) -> None:
        """Let nothing leave it or arrive there any more, without a word to anybody."""
        _ip("-n", self.space, "link", "set", "eth0", "down")


def trouble() -> str:
    """Why there can be none here; "" where there can."""
    if os.geteuid() or not shutil.which("ip"):
        return "network namespaces need root and iproute2"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=60, check=False)
    return "" if tried.returncode == 0 else "network namespaces are not allowed here"


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many of them, for the length of a `with`."""
    prefix = f"dbelief{os.getpid()}-"
    switch, made = f"{prefix}switch", [Machine(prefix, number) for number in range(1, count + 1)]
    with ExitStack() as stack:
        for space in (switch, *(machine.space for machine in made)):
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, machine in enumerate(made):
            end = f"p{number}"
            _ip("-n", machine.space, "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", switch)
            _ip("-n", switch, "link", "set", end, "master", "br0", "up")
            _ip("-n", machine.space, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", machine.space, "link", "set", device, "up")
        yield made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)
