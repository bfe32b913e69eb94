"""The network between clients and shards, as bad as a plan says: carried out at the one factory of channels.

It works on iterators of messages, encoded or not, so it holds for a stream per push and for a stream of many.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import grpc

from dbelief.core.placement import Placement
from dbelief.rpc import channel as factory
from dbelief.rpc.client import shard_calls as client
from dbelief.rpc.client.stream_pool import StreamPool

from .plan import Fault, Kind, Plan, Way

SETTLE_S = 60.0
"""How long late streams may take to arrive in the end, and a client to lose patience."""


class Broken(grpc.RpcError):
    """What a client sees of a stream that broke."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the network went away, as planned"


class Link:
    """One client's way to one shard: counts what passes, knows what is due, and sends what comes late."""

    def __init__(self, faults: dict[tuple[Way, int], Fault]) -> None:
        self.met: Counter[Kind] = Counter()
        self._faults = faults
        self._passed: Counter[Way] = Counter()
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._senders: list[threading.Thread] = []
        self._lock = threading.Lock()

    def meet(self, way: Way) -> Fault | None:
        """Count a message; what is planned for it. Sends what was to come after it."""
        with self._lock:
            number = self._passed[way]
            self._passed[way] += 1
            fault = self._faults.get((way, number))
            if fault is not None:
                self.met[fault.kind] += 1
            due = [send for at, send in self._late if at <= self._passed[Way.PUSH] + self._passed[Way.CALL]]
            self._late = [row for row in self._late if row[1] not in due]
        for send in due:
            self.send(send)
        if fault is not None and fault.kind is Kind.DELAY:
            time.sleep(fault.amount)
        return fault

    def send(self, send: Callable[[], None], after: int = 0) -> None:
        """Send beside all else: now, or when so many messages have passed."""
        if after:
            with self._lock:
                self._late.append((self._passed[Way.PUSH] + self._passed[Way.CALL] + after, send))
            return
        thread = threading.Thread(target=send, name="late", daemon=True)
        with self._lock:
            self._senders.append(thread)
        thread.start()

    def settle(self) -> None:
        """Let all that is late arrive."""
        with self._lock:
            late, self._late = self._late, []
        for _, send in late:
            self.send(send)
        for thread in self._senders:
            thread.join(SETTLE_S)
            assert not thread.is_alive(), f"a late stream did not end within {SETTLE_S:g} s"


class Network:
    """All links. Clients know a shard by `places`: an address that names their link."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.links: dict[str, Link] = {}
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[Network]:
        """Clients made inside go through it; what is late has arrived at the end."""
        with patch.object(client, "StreamPool", partial(StreamPool, self.open_channel)):
            yield self
            self.settle()

    def places(self, name: str, placement: Placement) -> Placement:
        """The placement as the client of this name sees it."""
        places = [replace(place, address=f"{name}.{place.shard}@{place.address}") for place in placement.places]
        return replace(placement, places=tuple(places))

    def open_channel(self, address: str) -> grpc.Channel:
        """What stands in for the factory of channels."""
        name, _, real = address.rpartition("@")
        channel = factory.open_channel(real)
        return grpc.intercept_channel(channel, _Door(self.link(name))) if name else channel

    def link(self, name: str) -> Link:
        """The link of this name, made when it is first asked for."""
        with self._lock:
            if name not in self.links:
                faults = {(fault.way, fault.at): fault for fault in self.plan.faults if fault.link == name}
                self.links[name] = Link(faults)
            return self.links[name]

    def settle(self) -> None:
        """Let all that is late arrive; to be called before the clients' channels are closed."""
        for link in list(self.links.values()):
            link.settle()

    @property
    def met(self) -> Counter[Kind]:
        """How often each kind of fault has happened."""
        return sum((link.met for link in self.links.values()), Counter[Kind]())


class _Door(
    grpc.StreamStreamClientInterceptor,
    grpc.UnaryUnaryClientInterceptor,
):
    """Where a link's calls pass."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Iterator[Any]) -> Any:
        if details.method.endswith("/Pull"):
            return _Answers(self._link, continuation(details, requests))
        stream = _Stream(self._link, lambda messages: continuation(details, messages))
        stream.begin(requests)
        return stream

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        fault = self._link.meet(Way.CALL)
        kind = fault.kind if fault else None

        def again() -> None:
            continuation(details, request).exception()

        if fault is not None and kind in (Kind.REPEAT, Kind.LATE):
            self._link.send(again, int(fault.amount))
        if kind in (Kind.CUT_BEFORE, Kind.LATE):
            raise Broken
        call = continuation(details, request)
        if kind is Kind.CUT_ANSWER:
            call.exception()  # it has been carried out by now
            raise Broken
        return call


class _Call(ABC):
    """A call of gRPC's whose answers may be withheld. Whatever else is asked of it is asked of gRPC's own."""

    def __init__(self) -> None:
        self._call: Any = None
        self._ended = threading.Event()

    def _watch(self, call: Any) -> None:
        self._call = call
        if not call.add_callback(self._ended.set):
            self._ended.set()

    def cancel(self) -> bool:
        self._ended.set()  # a call that is read on the client's own thread tells nobody of its end
        return bool(self._call.cancel())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any: ...


class _Stream(_Call):
    """A Push stream: requests pass one by one on gRPC's own thread, answers on the client's."""

    def __init__(self, link: Link, call: Callable[[Iterator[Any]], Any]) -> None:
        super().__init__()
        self._link = link
        self._open = call
        self._begun = threading.Event()
        self._fate: Kind | None = None  # what its client will see of it
        self._since_opening: list[Any] = []

    def begin(self, requests: Iterator[Any]) -> None:
        self._watch(self._open(self._passing(requests)))
        self._begun.set()

    def _passing(self, requests: Iterator[Any]) -> Iterator[Any]:
        for message in requests:
            if is_opening(message):
                self._since_opening = []
            self._since_opening.append(message)
            fault = self._link.meet(Way.PUSH)
            kind = fault.kind if fault else Kind.DELAY
            if fault is not None and kind in (Kind.REPEAT, Kind.LATE):
                self._send_again(int(fault.amount))
            if kind in (Kind.CUT_BEFORE, Kind.LATE):
                self._break(kind)
                return
            if kind is Kind.DROP:
                self._fate = kind
                self._ended.wait(SETTLE_S)  # its client loses patience, or its server is gone
                return
            if kind in (Kind.CUT_AFTER, Kind.CUT_ANSWER):
                self._fate = kind
            yield message
            if kind is Kind.CUT_AFTER:
                return

    def _send_again(self, after: int) -> None:
        messages = list(self._since_opening)

        def send() -> None:
            try:
                for _ in self._open(iter(messages)):
                    pass
            except (grpc.RpcError, ValueError):  # refused, or its shard or client is gone: nobody is there to be told
                pass

        self._link.send(send, after)

    def _break(self, kind: Kind) -> None:
        self._fate = kind
        self._begun.wait()
        self._call.cancel()

    def __next__(self) -> Any:
        while True:
            try:
                answer = next(self._call)
            except (StopIteration, grpc.RpcError):
                if self._fate in (None, Kind.DROP):
                    raise
                raise Broken from None
            if self._fate is None:
                return answer
            if self._fate is Kind.CUT_ANSWER:
                self._break(Kind.CUT_ANSWER)


class _Answers(_Call):
    """The answers of a Pull stream."""

    def __init__(self, link: Link, call: Any) -> None:
        super().__init__()
        self._link = link
        self._watch(call)

    def __next__(self) -> Any:
        answer = next(self._call)
        fault = self._link.meet(Way.PULL)
        if fault is not None and fault.kind is Kind.CUT_BEFORE:
            self._call.cancel()
            raise Broken
        if fault is not None and fault.kind is Kind.DROP:
            self._ended.wait(SETTLE_S)
            raise Broken
        return answer


def is_opening(message: Any) -> bool:
    """Whether a message of a Push stream is an opening: field 1 of it, by name or in its bytes."""
    return bool(message[:1] == b"\x0a" if isinstance(message, bytes) else message.HasField("opening"))
