"""Where the processes of a cluster run, and as whom they call each other: this machine, or somewhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from dbelief.launch.child_process import ChildProcess, Direct, Way
from dbelief.rpc import coordination_pb2 as wire
from dbelief.security.identity import clear


class Site(Protocol):
    """What a `Cluster` has to know of the machines that it runs on.

    Attributes
    ----------
    listen
        Address of the coordinator, which is a child process of this one; port 0.
    stopped
        Exit code of a run that was stopped by a signal, and ended in good order.
    """

    listen: str
    stopped: int

    def entered(self, logs: Path) -> AbstractContextManager[None]:
        """Take up the credentials of a launcher, and keep what the site needs itself; `logs`: folder for its logs."""
        ...

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """Where the registry's data is kept: below the run folder, or below one that ends with the launcher."""
        ...

    def arguments(self, role: str) -> list[str]:
        """More of the command line of every process of a role."""
        ...

    def way(self, role: str, name: str) -> Way:
        """How a process is started there."""
        ...

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """End shards that run and are lost all the same; called a few times a second."""
        ...


class Loopback:
    """This machine: child processes that call each other on loopback."""

    listen = "127.0.0.1:0"
    stopped = 130

    @contextmanager
    def entered(self, logs: Path) -> Iterator[None]:
        """See `Site`."""
        clear()  # all of it is on loopback, and credentials that a person has are for another job
        yield

    def registry_folder(self, run: Path, scratch: Path) -> Path:
        """See `Site`."""
        return run / "registry"

    def arguments(self, role: str) -> list[str]:
        """See `Site`."""
        return []

    def way(self, role: str, name: str) -> Way:
        """See `Site`."""
        return Direct()

    def look(self, status: wire.StatusReply, shards: Iterable[ChildProcess]) -> None:
        """See `Site`."""
