"""What holds for any engine, as functions of one rank; run on threads here and by `mpiexec` in `program.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dbelief.errors import RankFailure
from worker.comm import Communicator, Message


def ring(comm: Communicator) -> None:
    """Each rank's number goes once around."""
    mine, taken = np.full(5, comm.rank), np.empty(5, np.int64)
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.start([Message(True, mine, to, step), Message(False, taken, source, step)]).wait()
        assert taken.tolist() == [source] * 5


def tags(comm: Communicator) -> None:
    """Tags tell messages apart, and those of one tag keep their order; sizes from nothing to what no mailbox holds."""
    for size in (0, 1, 300_000):
        arrays = [np.arange(size) + number for number in range(4)]
        if comm.rank == 0:
            for to in range(1, comm.size):
                sends = [comm.isend(array, to, tag) for array, tag in zip(arrays, (7, 3, 7, 3), strict=True)]
                for sent in sends:
                    sent.wait()
        else:
            taken = {number: np.empty(size, np.int64) for number in (1, 3, 0, 2)}
            pending = [comm.irecv(array, 0, 7 if number % 2 == 0 else 3) for number, array in taken.items()]
            for receive in reversed(pending):
                receive.wait()
            for number, array in taken.items():
                np.testing.assert_array_equal(array, arrays[number])


def kinds(comm: Communicator) -> None:
    """Any dtype and any number of axes; bits arrive as they were."""
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.bool_, np.complex128):
        sent = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(dtype)
        if comm.rank == 0:
            for to in range(1, comm.size):
                comm.send(sent, to)
        else:
            taken = np.empty((2, 3, 4), dtype)
            comm.recv(taken, 0)
            assert taken.tobytes() == sent.tobytes()


def words(comm: Communicator) -> None:
    """Everyone hears the root's bytes, nothing at all among them; a number is summed in rank order."""
    for root in range(comm.size):
        for text in (b"", b"stop", bytes(range(256)) * 40):
            assert comm.share(text if comm.rank == root else b"not this", root) == text
    total = 0.0
    for rank in range(comm.size):
        total += 0.1 * (rank + 1)
    assert comm.total(0.1 * (comm.rank + 1)) == total


def sums(comm: Communicator) -> None:
    """A sum has the bits of a loop over the ranks, whatever its size."""
    for shape in ((), (1,), (3, 2), (17,), (1000, 3)):
        for dtype in (np.float32, np.float64, np.int64):
            parts = [
                (1000 * np.random.default_rng(rank).standard_normal(shape)).astype(dtype) for rank in range(comm.size)
            ]
            expected = np.array(parts[0])
            for part in parts[1:]:
                expected += part
            array = np.array(parts[comm.rank])
            comm.allreduce(array)
            assert array.tobytes() == expected.tobytes()


def barriers(comm: Communicator) -> None:
    """A barrier can follow a barrier."""
    for _ in range(20):
        comm.barrier()


class OneRaises:
    """Of four ranks 2 raises when 0 and 1 wait for each other, and 3 at a barrier.

    Attributes
    ----------
    ends
        By rank, what 0 and 1 were told.
    """

    def __init__(self) -> None:
        self.ends: dict[int, str] = {}

    def __call__(self, comm: Communicator) -> None:
        if comm.rank == 2:
            for rank in (0, 1):
                comm.recv(np.empty(1), rank)
            raise ZeroDivisionError("a rate of 0")
        if comm.rank == 3:
            comm.barrier()
        pending = comm.irecv(np.empty(4), (comm.rank + 1) % 2, tag=9)
        comm.send(np.empty(1), 2)
        try:
            pending.wait()
        except RankFailure as error:
            self.ends[comm.rank] = str(error)
            raise


BODIES: tuple[Callable[[Communicator], None], ...] = (ring, tags, kinds, words, sums, barriers)
