"""Rendezvous of a worker with its group: a listener for the process lifetime, and one group at a time."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from dbelief.errors import RankFailure
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.security import DOMAIN, Credentials

from .comm import Communicator
from .comm.sockets import Listener, TlsContexts, connect_mesh


@dataclass(frozen=True)
class GroupSpec:
    """Group of workers that train a block of leases together.

    Attributes
    ----------
    generation
        Number of the group; connections with another generation are rejected.
    rank
        This worker's rank.
    addresses, samples
        Listening address of each worker and samples of its lease, by rank.
    samples_before
        Samples leased before the first of their leases.
    written
        Steps that the parameters on the shards include.
    """

    generation: int
    rank: int
    addresses: tuple[str, ...]
    samples: tuple[int, ...]
    samples_before: int
    written: int

    @classmethod
    def of(cls, message: wire.Group, replica: int) -> GroupSpec:
        """Build the group of this replica from the coordinator's message."""
        numbers = [member.replica for member in message.members]
        return cls(
            message.generation,
            numbers.index(replica),
            tuple(member.address for member in message.members),
            tuple(member.samples for member in message.members),
            message.samples_before,
            message.written,
        )

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.addresses)


class Rendezvous:
    """This worker's membership in groups.

    Parameters
    ----------
    host, port
        Local address to listen on; port 0: any free port.
    known_as
        Advertised "host:port", if different; port 0: the port that is listened on.
    deadline_s
        Timeout for the other workers to connect, and for each message.
    credentials
        Presented to workers of other hosts, and required of them; None: plain connections, in a trusted network.

    Attributes
    ----------
    run_id
        Run of the job that this worker has joined.
    """

    def __init__(
        self, host: str, port: int, known_as: str, job: str, deadline_s: float, credentials: Credentials | None = None
    ) -> None:
        self._seal = _tls_contexts(credentials) if credentials is not None else None
        self._listener = Listener(host, port, known_as, self._seal)
        self.run_id = 0
        self._job = job
        self._deadline_s = deadline_s
        self._lock = runtime.lock()
        self._comm: Communicator | None = None
        self._generation = 0
        self._over = 0

    @property
    def address(self) -> str:
        """Advertised address, host:port."""
        return self._listener.address

    def join(self, group: GroupSpec) -> tuple[Communicator, bool]:
        """Communicator of the group, and whether it was just connected.

        Raises
        ------
        Unavailable
            Not all workers connected in time; names the missing ones.
        RankFailure
            A worker of the group failed.
        """
        if self._comm is not None and self._generation == group.generation:
            return self._comm, False
        self.leave()
        engine = connect_mesh(
            self._listener,
            self._job,
            group.generation,
            group.rank,
            group.addresses,
            self._deadline_s,
            seal=self._seal,
            run_id=self.run_id,
        )
        with self._lock:
            self._comm, self._generation = Communicator(engine, self._deadline_s), group.generation
        self.invalidate(self._over)  # a loss may have been reported while connecting
        return self._comm, True

    def invalidate(self, generation: int) -> None:
        """Abort every wait in a group up to this generation, which has lost a member; thread-safe."""
        with self._lock:
            self._over = max(self._over, generation)
            if self._comm is not None and self._generation <= self._over:
                self._comm.abort(RankFailure(f"generation {self._generation} of the group has lost a member"))

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the current group, if any; with an error, the waits of its other workers end."""
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is not None:
            if error is not None:
                comm.abort(error)
            comm.close()

    def close(self) -> None:
        """Leave the group and stop listening."""
        self.leave()
        self._listener.close()


def _tls_contexts(credentials: Credentials) -> TlsContexts:
    """TLS contexts for connections between workers; both ends must present a worker's certificate."""
    calling, called = (credentials.context(side) for side in (ssl.Purpose.SERVER_AUTH, ssl.Purpose.CLIENT_AUTH))
    return TlsContexts(calling, called, f"{credentials.role}.{DOMAIN}", credentials.role)
