"""Ranks joined by sockets, each a thread of this process with a listener of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from dbelief.errors import RankFailure
from worker.comm import Communicator
from worker.comm.sockets import Listener, SocketEngine, TlsContexts, connect_mesh

T = TypeVar("T")


def elsewhere(address: str) -> str:
    """The same port under a name that its listener does not know of: a caller has to go by TCP."""
    return address.replace("127.0.0.1", "127.1")


def meet(
    listeners: Sequence[Listener],
    by_tcp: bool = False,
    seals: Sequence[TlsContexts | None] | None = None,
    generation: int = 1,
    deadline_s: float = 20.0,
) -> list[SocketEngine]:
    """Join ranks that listen there: their engines, in rank order."""
    addresses = [elsewhere(listener.address) if by_tcp else listener.address for listener in listeners]

    def come(rank: int) -> SocketEngine:
        seal = seals[rank] if seals is not None else None
        return connect_mesh(listeners[rank], "a job", generation, rank, addresses, deadline_s, seal=seal)

    with ThreadPoolExecutor(len(listeners)) as pool:
        return list(pool.map(come, range(len(listeners))))


@contextmanager
def joined(size: int, by_tcp: bool, seal: TlsContexts | None = None) -> Iterator[list[SocketEngine]]:
    """The engines of a group, in rank order; the caller may use each from one thread at a time."""
    with ExitStack() as stack:
        listeners = [Listener(seal=seal) for _ in range(size)]
        for listener in listeners:
            stack.callback(listener.close)
        engines = meet(listeners, by_tcp, [seal] * size)
        for engine in engines:
            stack.callback(engine.close)
        yield engines


def run_joined(
    size: int,
    function: Callable[[Communicator], T],
    by_tcp: bool,
    deadline_s: float = 20.0,
    seal: TlsContexts | None = None,
) -> list[T]:
    """As `run_ranks`: what each rank returned, or the first error that is none of another's death."""

    def run(engine: SocketEngine) -> T | BaseException:
        try:
            with Communicator(engine, deadline_s) as comm:
                return function(comm)
        except BaseException as error:
            return error

    with joined(size, by_tcp, seal) as engines, ThreadPoolExecutor(size) as pool:
        results = list(pool.map(run, engines))
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, RankFailure)):
        raise error
    return [result for result in results if not isinstance(result, BaseException)]
