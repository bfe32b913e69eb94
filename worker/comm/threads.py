"""Engine for ranks that are threads of one process: several devices of one machine, and all tests.

A message is one copy. The side that comes first leaves its array in a queue of (from, to, tag). The other side copies
directly between the two arrays, outside the lock, and wakes the first. A send is therefore complete when it is
received. With CuPy the arrays may be on different devices. Each side waits for earlier work of its device, and the side
that copies waits for the copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dbelief.process.clock import Clock, SystemClock
from dbelief.process.runtime import Empty, Queue, runtime

from .communicator import Communicator
from .engine import Handle, Message, PeerFailure, rank_failed, timed_out

T = TypeVar("T")


class _Mailbox:
    """One end of a message: its request, and whether it is complete."""

    __slots__ = ("key", "message", "over", "through")

    def __init__(self, rank: int, message: Message) -> None:
        ends = (rank, message.peer) if message.sends else (message.peer, rank)
        self.key = (*ends, message.tag)
        self.message = message
        self.over = runtime.event()
        self.through = False

    def finish(self) -> None:
        self.through = True
        self.over.set()


class Group:
    """State shared by the ranks of one process.

    Parameters
    ----------
    size
        Number of ranks, 1 or more.
    xp
        Module of the arrays that they send.
    """

    def __init__(self, size: int, clock: Clock | None = None, xp: Any = np) -> None:
        if size < 1:
            raise ValueError(f"a group of {size} ranks: there must be one or more")
        self.size = size
        self.xp = xp
        self.clock: Clock = clock or SystemClock()
        self.death: PeerFailure | None = None
        self.error: BaseException | None = None
        self._lock = runtime.lock()
        self._posted: dict[tuple[int, int, int], deque[_Mailbox]] = {}

    def post(self, side: _Mailbox, rank: int) -> None:
        """Post one side of a message; the second side to arrive copies."""
        with self._lock:
            if self.death is not None:
                raise rank_failed(self.death, rank)
            posted = self._posted.setdefault(side.key, deque())
            if not posted or posted[0].message.sends == side.message.sends:
                posted.append(side)
                return
            other = posted[0]
            mine, theirs = side.message.array, other.message.array
            if (mine.size, mine.dtype) != (theirs.size, theirs.dtype):
                raise ValueError(
                    f"rank {rank} wants {side.message} as {mine.size} {mine.dtype}, "
                    f"and there it is {theirs.size} {theirs.dtype}"
                )
            posted.popleft()
        source, target = (mine, theirs) if side.message.sends else (theirs, mine)
        try:
            self.xp.copyto(target, source.reshape(target.shape))
            self.settle()
        except BaseException as error:  # the other rank waits for this copy without a deadline
            self.fail(f"rank {rank}", error)
            other.over.set()
            raise
        other.finish()
        side.finish()

    def settle(self) -> None:
        """Wait until this thread's device has completed its work."""
        if self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()

    def withdraw(self, side: _Mailbox) -> bool:
        """Withdraw an unmatched side; False if it is matched, and complete or about to be."""
        with self._lock:
            posted = self._posted.get(side.key, deque())
            if side not in posted:
                return False
            posted.remove(side)
            return True

    def fail(self, who: str, error: BaseException) -> None:
        """End every wait; only the first failure counts."""
        with self._lock:
            if self.death is not None:
                return
            self.death, self.error = PeerFailure.of(who, error), error
            waiting = [side for posted in self._posted.values() for side in posted]
            self._posted.clear()
        for side in waiting:
            side.over.set()


class ThreadEngine:
    """One rank of a group of threads; transfers the group's arrays, on this thread's current device."""

    def __init__(self, group: Group, rank: int) -> None:
        self._group = group
        self.rank, self.size = rank, group.size
        self.xp: Any = group.xp

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages; those whose peer is already waiting are copied before this returns."""
        self._group.settle()
        sides = [_Mailbox(self.rank, message) for message in messages]
        for side in sides:
            self._group.post(side, self.rank)
        return Handle(partial(self._wait, sides))

    def _wait(self, sides: list[_Mailbox], deadline_s: float) -> None:
        """Block until all messages are complete; see `Handle`."""
        clock = self._group.clock
        until_s = clock.now() + deadline_s
        for side in sides:
            if not clock.wait(side.over, max(0.0, until_s - clock.now())):
                waiting = [side.message for side in sides if self._group.withdraw(side)]
                if waiting:
                    raise timed_out(deadline_s, self.rank, waiting)
                side.over.wait()  # the other rank is copying now
        if self._group.death is not None:
            waiting = [side.message for side in sides if not side.through]
            if waiting:
                raise rank_failed(self._group.death, self.rank, waiting)

    def check(self) -> None:
        """Raise RankFailure if a rank has failed."""
        if self._group.death is not None:
            raise rank_failed(self._group.death, self.rank)

    def abort(self, error: BaseException) -> None:
        """End every wait of the group with this rank's name and error."""
        self._group.fail(f"rank {self.rank}", error)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def run_ranks(
    size: int, function: Callable[[Communicator], T], deadline_s: float = 60.0, clock: Clock | None = None, xp: Any = np
) -> list[T]:
    """Run `function` once per rank, rank 0 on this thread, and return the results in rank order.

    Parameters
    ----------
    deadline_s
        Timeout of each wait of a rank and, after a failure, of this call for the other ranks.
    xp
        Module of the arrays that they send.

    Raises
    ------
    BaseException
        The first one that a rank raised, after the other ranks ended too. A rank that did not end within `deadline_s`
        is named in a note, and continues as a daemon thread.
    """
    group = Group(size, clock, xp)
    ended: Queue[int] = runtime.queue()
    results: dict[int, T] = {}

    def run(rank: int) -> None:
        try:
            with Communicator(ThreadEngine(group, rank), deadline_s) as comm:
                results[rank] = function(comm)
        except BaseException as error:
            group.fail(f"rank {rank}", error)
        finally:
            ended.put(rank)

    for rank in range(1, size):
        runtime.spawn(run, f"rank-{rank}", rank)
    run(0)
    running = set(range(size))
    try:
        while running:
            running.discard(ended.get(timeout=None if group.error is None else deadline_s))
    except Empty:
        assert group.error is not None
        group.error.add_note(f"rank {', '.join(map(str, sorted(running)))} had not ended {deadline_s:g} s later")
    except BaseException as error:
        group.fail("the caller", error)
        raise
    if group.error is not None:
        raise group.error
    return [results[rank] for rank in range(size)]
