"""Where a worker meets the others of its group: it listens for them all its life, and has one group at a time."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass

from dbelief.errors import RankFailure
from dbelief.rpc import coordination_pb2 as wire
from dbelief.security import DOMAIN, Credentials

from .comm import Communicator
from .comm.sockets import Listener, TlsContexts, connect_mesh


@dataclass(frozen=True)
class GroupSpec:
    """Whom a lease is trained together with.

    Attributes
    ----------
    generation
        Its number; whoever has another one is not met.
    rank
        This worker's.
    addresses, samples
        Where each of them listens, and of each one's lease, by rank.
    samples_before
        Samples leased before the first of their leases.
    written
        Steps that are in what the shards hold.
    """

    generation: int
    rank: int
    addresses: tuple[str, ...]
    samples: tuple[int, ...]
    samples_before: int
    written: int

    @classmethod
    def of(cls, message: wire.Group, replica: int) -> GroupSpec:
        """The group as the coordinator tells this replica of it."""
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
        """How many there are."""
        return len(self.addresses)


class Rendezvous:
    """This worker's end of the groups it is in.

    Parameters
    ----------
    host, port
        Address of this machine to listen on; port 0: any that is free.
    known_as
        "host:port" that the others are told, where that is another; port 0: the one that is listened on.
    deadline_s
        Longest wait for the others, to come and for each message.
    credentials
        What it shows to workers of other hosts, and asks of them; None: their network is trusted.

    Attributes
    ----------
    run_id
        Of the run of the job that this worker has joined.
    """

    def __init__(
        self, host: str, port: int, known_as: str, job: str, deadline_s: float, credentials: Credentials | None = None
    ) -> None:
        self._seal = _tls_contexts(credentials) if credentials is not None else None
        self._listener = Listener(host, port, known_as, self._seal)
        self.run_id = 0
        self._job = job
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._comm: Communicator | None = None
        self._generation = 0
        self._over = 0

    @property
    def address(self) -> str:
        """What the others are told, host:port."""
        return self._listener.address

    def join(self, group: GroupSpec) -> tuple[Communicator, bool]:
        """The ranks of this group, and whether they have just met.

        Raises
        ------
        Unreachable
            Not all came in time; names them.
        RankFailure
            One of them failed.
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
        self.invalidate(self._over)  # heard while they met
        return self._comm, True

    def invalidate(self, generation: int) -> None:
        """Groups up to this generation have lost a member: end every wait for it. Called on any thread."""
        with self._lock:
            self._over = max(self._over, generation)
            if self._comm is not None and self._generation <= self._over:
                self._comm.abort(RankFailure(f"generation {self._generation} of the group has lost a member"))

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group, if there is one; with an error, its others end their waits."""
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is not None:
            if error is not None:
                comm.abort(error)
            comm.close()

    def close(self) -> None:
        """Leave, and listen no more."""
        self.leave()
        self._listener.close()


def _tls_contexts(credentials: Credentials) -> TlsContexts:
    """TLS between workers, where both ends show that they are."""
    calling, called = (credentials.context(side) for side in (ssl.Purpose.SERVER_AUTH, ssl.Purpose.CLIENT_AUTH))
    return TlsContexts(calling, called, f"{credentials.role}.{DOMAIN}", credentials.role)
