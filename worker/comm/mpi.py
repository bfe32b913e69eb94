"""Engine for ranks that are `mpiexec` processes, over mpi4py (`pip install 'dbelief[mpi]'`; MPI: `pip install mpich`).

It uses two communicators of its own: one for messages, and one on which a rank that fails sends the cause to all
others. A wait polls both, with growing pauses, so that waits end with the cause. Ranks that do not receive the notice,
because they compute or are stuck, are ended by `close` a little later (MPI_Abort): all ranks of an MPI program end
together.
"""

from __future__ import annotations

import atexit
import functools
import logging
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from dbelief.errors import UserError
from dbelief.process.clock import Clock, SystemClock

from .engine import Handle, Message, PeerFailure, rank_failed, timed_out
from .polling import poll

log = logging.getLogger(__name__)

NEWS_BYTES = 1024
"""Maximum length of a failure notice; so short that MPI sends it without waiting for the receiver."""
TELL_S = 1.0
LEAVE_S = 5.0
"""Seconds that a failed rank waits for the others to leave too, before all are aborted."""
FORWARD_S = 1.0
"""Seconds between the last log record and MPI_Abort: mpiexec drops output that it has not read by then."""


@functools.cache
def _mpi() -> Any:
    """The module MPI; its first import initializes MPI, which is finalized when this process ends.

    mpi4py finalizes it in the interpreter's teardown, without which our programs end; mpiexec would report a failure.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library is installed
        raise UserError(
            f"mpi4py does not import ({error}): pip install 'dbelief[mpi]', and an MPI (mpich, say)"
        ) from error
    atexit.register(_finalize, MPI)
    return MPI


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


class MpiEngine:
    """This process as one rank; transfers NumPy arrays.

    Construction is collective: all ranks of `communicator` (default: all of mpiexec's) construct it together.

    Raises
    ------
    UserError
        mpi4py or an MPI library is missing.
    """

    xp: ModuleType = np

    def __init__(self, communicator: Any = None, clock: Clock | None = None) -> None:
        self._mpi = _mpi()
        world = communicator or self._mpi.COMM_WORLD
        self._data, self._news = world.Dup(), world.Dup()
        self._clock: Clock = clock or SystemClock()
        self._death: PeerFailure | None = None
        self._kept: list[Any] = []  # abandoned requests and their arrays: MPI may still access them
        self.rank: int = self._data.Get_rank()
        self.size: int = self._data.Get_size()

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages; small ones may complete before their receive is posted, large ones do not."""
        self.check()
        requests = []
        for message in messages:
            call = self._data.Isend if message.sends else self._data.Irecv
            requests.append(call(self._bytes(message.array), message.peer, message.tag))
        return Handle(partial(self._wait, requests, messages))

    def _bytes(self, array: np.ndarray) -> list[Any]:
        return [array.reshape(-1).view(np.uint8), self._mpi.BYTE]

    def check(self) -> None:
        """Raise RankFailure if a rank has failed; cost: one probe for a notice."""
        if self.has_failed():
            assert self._death is not None
            raise rank_failed(self._death, self.rank)

    def has_failed(self) -> bool:
        """Whether a rank of the group has failed, as far as this rank was notified."""
        status = self._mpi.Status()
        if self._death is None and self._news.Iprobe(self._mpi.ANY_SOURCE, 0, status):
            text = np.zeros(status.Get_count(self._mpi.BYTE), np.uint8)
            self._news.Recv(self._bytes(text), status.Get_source(), 0)
            self._death = PeerFailure(f"rank {status.Get_source()}", text.tobytes().decode(errors="replace"))
        return self._death is not None

    def _wait(self, requests: list[Any], messages: Sequence[Message], deadline_s: float) -> None:
        """Poll until all requests are complete; see `Handle`."""
        statuses = [self._mpi.Status() for _ in requests]
        through = False

        def over() -> bool:
            nonlocal through
            through = self._mpi.Request.Testall(requests, statuses)
            return through or self.has_failed()

        try:
            poll(self._clock, over, deadline_s)
        except self._mpi.Exception as error:  # most likely a message longer than its receive buffer
            named = ", ".join(map(str, messages))
            raise ValueError(f"rank {self.rank} waited for {named}: {str(error).splitlines()[0]}") from error
        if not through:
            waiting = [message for message, request in zip(messages, requests, strict=True) if not request.Test()]
            self._kept.append((requests, messages))
            raise (
                rank_failed(self._death, self.rank, waiting)
                if self._death
                else timed_out(deadline_s, self.rank, waiting)
            )
        for message, status in zip(messages, statuses, strict=True):
            count = status.Get_count(self._mpi.BYTE)
            if not message.sends and count != message.array.nbytes:
                raise ValueError(f"rank {self.rank} wants {message}, and it sent {count:,}")

    def abort(self, error: BaseException) -> None:
        """Send the cause of this rank's failure to all others; a rank that was notified of a failure sends nothing."""
        if self.has_failed():
            return
        self._death = PeerFailure.of(f"rank {self.rank}", error)
        text = np.frombuffer(self._death.cause.encode()[:NEWS_BYTES], np.uint8)
        peers = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self._news.Isend(self._bytes(text), peer, 0) for peer in peers]
        poll(self._clock, lambda: bool(self._mpi.Request.Testall(requests)), TELL_S)

    def close(self) -> None:
        """Leave; collective. After a failure MPI_Abort ends the program, unless all ranks leave within 5 s."""
        if not self.has_failed():
            self._data.Free()
            self._news.Free()
            return
        left = self._news.Ibarrier()
        if not poll(self._clock, lambda: bool(left.Test()), LEAVE_S):
            assert self._death is not None
            log.warning(f"rank {self.rank}: {self._death.who} died of {self._death.cause}; not all ranks left in time")
            poll(self._clock, lambda: False, FORWARD_S)
            self._mpi.COMM_WORLD.Abort(1)
