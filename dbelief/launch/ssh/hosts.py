"""Hosts of a job: the file that lists them, and which of them answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dbelief.errors import UserError

log = logging.getLogger(__name__)

LOST_S = 30.0
"""Seconds for which a host gets no member after its connection has broken."""


def read_hosts(file: Path) -> dict[str, int]:
    """Hosts, as `ssh` is given them, with the members that each has room for.

    A line has a host name, `USER@HOST`, or a name of `~/.ssh/config`, and `slots=N` behind it where the host is to get
    several members. What follows a `#` is a comment.

    Raises
    ------
    UserError
        The file cannot be read, a line is none of these, or there is no host; names file and line.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            name, slots = _host(words, f"{file}:{number}")
            if name in hosts:
                raise UserError(f"{file}:{number}: host {name} a second time; several members: slots=N")
            hosts[name] = slots
    if not hosts:
        raise UserError(f"{file}: no host; a line for each: HOST, or HOST slots=N")
    return hosts


def _host(words: list[str], where: str) -> tuple[str, int]:
    name, *options = words
    slots = 1
    for option in options:
        key, _, value = option.partition("=")
        if key != "slots" or not value.isascii() or not value.isdecimal() or not int(value):
            raise UserError(f"{where}: {option!r} behind host {name}; what may stand there is slots=N, N from 1")
        slots = int(value)
    if name.startswith("-"):  # an option to ssh
        raise UserError(f"{where}: {name!r} is no host")
    return name, slots


class ReachableHosts:
    """Which hosts get members now: all but those whose connection has broken a short time ago.

    Parameters
    ----------
    slots
        See `read_hosts`.
    """

    def __init__(self, slots: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = slots
        self._clock = clock
        self._broke_s: dict[str, float] = {}

    def broke(self, host: str) -> None:
        """Record that the connection to a host has broken, or could not be made."""
        if host in self.left():
            log.warning(f"host {host} is lost; it gets no member for {LOST_S:g} s")
        self._broke_s[host] = self._clock()

    def left(self) -> list[str]:
        """The hosts that get members; all of them where none is left."""
        now_s = self._clock()
        left = [host for host in self.slots if now_s - self._broke_s.get(host, -LOST_S) >= LOST_S]
        return left or list(self.slots)
