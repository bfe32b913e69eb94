"""Hosts that are reached by `ssh` as a cluster's site: the coordinator on this machine, members on the hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from dbelief.errors import RuntimeFailure, UserError
from dbelief.launch.child_process import ChildProcess, Direct, Way
from dbelief.launch.elsewhere import ROLES, bracketed, job_credentials, marker, not_shared
from dbelief.launch.places import Places
from dbelief.rpc.pb import coordination_pb2 as wire

from .connection import run
from .hosts import ReachableHosts
from .member import SshMember

T = TypeVar("T")

_PROBE = 'echo "$SSH_CONNECTION"; exec "$@" --version'
"""Prints the connection's addresses, the client's and the host's, and the version of the program."""


class Ends(NamedTuple):
    """Addresses of a connection, this machine's as the host sees it, and the host's."""

    here: str
    there: str


class SshSite:
    """A `Site` of hosts.

    Parameters
    ----------
    slots
        Members that each host has room for; more share them.
    program
        Words that start `dbelief` on a host.
    address
        Of this machine, which all hosts reach; None: the one that they see connections come from.
    shares
        Whether the run folder must be one that all hosts share.
    variables
        Of the environment, for hosts that have none of that name.

    Raises
    ------
    RuntimeFailure
        A host cannot be reached.
    UserError
        It has no `dbelief`, or another version of it; or hosts see this machine under different addresses, or under
        one that it does not have.
    """

    stopped = 130

    def __init__(
        self,
        slots: Mapping[str, int],
        program: Sequence[str],
        address: str | None = None,
        shares: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._variables = variables
        self._shares = shares
        self._hosts, self._places, self._program = ReachableHosts(slots), Places(slots), program
        self._credentials = Path()
        ends = dict(zip(slots, _each(slots, lambda host: _probe(host, program)), strict=True))
        self._here = address.strip("[]") if address else _here(ends)
        _check_own(self._here)
        self._listens = {host: self._here if _is_loopback(end.there) else end.there for host, end in ends.items()}
        self.listen = f"{bracketed(self._here)}:0"

    @contextmanager
    def entered(self, logs: Path) -> Iterator[None]:
        """See `Site`."""
        if self._shares:
            self._check_shared(logs.parent)
        with job_credentials(logs.parent, self._here) as self._credentials:
            yield

    def _check_shared(self, folder: Path) -> None:
        """Check that hosts see a folder of this machine: shards write their part of each snapshot set there."""
        with marker(folder) as file:
            found = _each(self._hosts.slots, lambda host: run(host, '! [ -e "$1" ] || echo there', str(file)))
        if apart := [host for host, said in zip(self._hosts.slots, found, strict=True) if not said.strip()]:
            raise UserError(f"host {apart[0]} {not_shared(folder)}")

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """See `Site`."""
        return run / "registry"

    def arguments(self, role: str) -> list[str]:
        """See `Site`."""
        return [] if role in ROLES else ["--credentials", str(self._credentials / role)]

    def way(self, role: str, name: str) -> Way:
        """See `Site`."""
        if role not in ROLES:
            return Direct()
        listens = {host: bracketed(address) for host, address in self._listens.items()}
        how = self._program, Path.cwd(), self._credentials / role, listens, self._variables
        return SshMember(role, name, self._hosts, self._places, *how)

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """See `Site`: `ssh` itself finds out that a host does not answer."""


def _probe(host: str, program: Sequence[str]) -> Ends:
    """Check that a host has this version of the program; the addresses of the connection to it."""
    try:
        found = run(host, _PROBE, *program)
    except RuntimeFailure as error:
        if "cannot be reached" in str(error):
            raise
        raise UserError(f"{error}; is {' '.join(program)!r} how dbelief is started there? --remote-command") from None
    *_, connection, said = ["", "", *found.splitlines()]  # the user's shell may have said something before
    if (there := said.split()[-1:]) != [own := version("dbelief")]:
        raise UserError(f"host {host}: dbelief is of version {' '.join(there) or '?'}, and here of {own}")
    if len(ends := connection.split()) != 4:
        raise UserError(f"host {host}: its SSH_CONNECTION is {connection!r}, which names no addresses")
    return Ends(ends[0], ends[2])


def _here(ends: Mapping[str, Ends]) -> str:
    """This machine's address; a host on loopback reaches every other one too."""
    seen = {end.here: host for host, end in ends.items()}
    apart = {address: host for address, host in seen.items() if not _is_loopback(address)}
    if len(apart) > 1:
        each = ", ".join(f"{address} ({host})" for address, host in apart.items())
        raise UserError(f"hosts see this machine under several addresses: {each}; --address: one that all reach")
    return next(iter(apart or seen))


def _check_own(address: str) -> None:
    """Check that an address is this machine's: the coordinator listens there."""
    try:
        found = ipaddress.ip_address(address)
        with socket.socket(socket.AF_INET6 if found.version == 6 else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError) as error:
        raise UserError(
            f"hosts see this machine as {address}, where it cannot listen ({error}), as behind NAT or a jump host; "
            "--address: one of its own that all hosts reach"
        ) from None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _each(hosts: Iterable[str], work: Callable[[str], T]) -> list[T]:
    """Results of `work` of all hosts at a time; the first failure is raised when all have ended."""
    hosts = list(hosts)
    with ThreadPoolExecutor(min(32, len(hosts)), "ssh") as threads:
        return list(threads.map(work, hosts))
