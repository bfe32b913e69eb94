"""A network between simulated processes: it delays, reorders, cuts and breaks; a `Transport`.

Messages of one call arrive in order; those of different calls overtake each other. A cut link holds messages back; if
it stays cut for longer than `KEEPALIVE_S`, its calls break. A broken call loses what is under way: the client cannot
know whether its request was executed.
"""

from __future__ import annotations

import errno
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import grpc

from dbelief.process.runtime import Event, runtime
from dbelief.rpc.keepalive import KEEPALIVE
from dbelief.rpc.transport import Options
from tests.memory_network import Call, Details, Failure, MemoryChannel, MemoryNetwork, MemoryServer

from .direct_connections import Ends, SimulatedConnection, SimulatedListener
from .scheduler import Process, Scheduler

KEEPALIVE_S = sum(KEEPALIVE)
"""Seconds after which gRPC notices that its peer does not answer."""
FAR, FAR_S = 25.0, 0.03
"""How much longer a message takes on a link between distant machines, up to a mean delay in seconds."""
CONNECT_S = 20.0
"""Seconds after which a call to a host that does not answer fails."""


class Wire:
    """A call under way, as the network sees it."""

    __slots__ = ("arrives_s", "begun_s", "broken", "client", "method", "over", "server", "slowness", "under_way")

    def __init__(self, client: Process, server: Process, method: str, slowness: float, now_s: float) -> None:
        self.client, self.server, self.method = client, server, method.rpartition("/")[2]
        self.slowness = slowness
        self.begun_s: float | None = now_s  # None: it is connected
        self.arrives_s = [0.0, 0.0]  # when the last message arrives: at the client, at the server
        self.under_way: tuple[deque[Callable[[], None]], ...] = deque(), deque()  # messages: to the client, the server
        self.broken = False
        self.over = False  # at the client


class SimulatedServer(MemoryServer):
    """A server of a simulated process."""

    def __init__(
        self, network: SimulatedNetwork, threads: Executor, interceptors: Sequence[Any], process: Process
    ) -> None:
        super().__init__(network, threads, interceptors)
        self.process = process


class SimulatedNetwork(MemoryNetwork):
    """All links between simulated processes.

    Parameters
    ----------
    far
        Share of the links that are between distant machines.

    Attributes
    ----------
    mean_s
        Mean delay of a message, in seconds.
    """

    def __init__(self, scheduler: Scheduler, mean_s: float, far: float = 0.0) -> None:
        super().__init__()
        self._scheduler = scheduler
        self.mean_s = mean_s
        self._wires: dict[Call, Wire] = {}
        self._far = far
        self._slownesses: dict[tuple[Process, Process], float] = {}
        self._nothing = runtime.event()
        self.listeners: dict[int, SimulatedListener] = {}  # by port
        self._ports = itertools.count(50_000)
        self._cut_until_s: dict[tuple[Process, Process], float] = {}  # by sender and receiver
        self._awaited: dict[tuple[str, bool], list[Callable[[Process, Process], None]]] = {}  # by method, and when

    @property
    def _process(self) -> Process:
        assert self._scheduler.current is not None, "a timer opens a channel"
        return self._scheduler.current.process

    def process_at(self, address: str) -> Process | None:
        """The process that serves an address; None where none does."""
        server = self.server_at(address)
        return server.process if isinstance(server, SimulatedServer) else None

    def channel(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        return MemoryChannel(self, address)

    def server(self, threads: Executor, interceptors: Sequence[Any], options: Options, calls: int) -> Any:
        process = self._process
        server = SimulatedServer(self, threads, interceptors, process)
        process.on_end.append(lambda: self.stop(server.address, server, None, self._nothing))
        return server

    def stop(self, address: str, server: MemoryServer, grace_s: float | None, stopped: Event) -> None:
        super().stop(address, server, grace_s, self._nothing)
        if isinstance(server, SimulatedServer):
            self._scheduler.at(0.05, partial(self._stopping, server, self._scheduler.now_s + (grace_s or 0.0), stopped))
            if not grace_s:
                self.break_calls(server.process, served=True)

    def _stopping(self, server: SimulatedServer, until_s: float, stopped: Event) -> None:
        """Set `stopped` once no call is open any more; at the end of the grace period all are broken."""
        if self._scheduler.now_s >= until_s:
            self.break_calls(server.process, served=True)
            stopped.set()
        elif any(wire.server is server.process for wire in self._wires.values()):
            self._scheduler.at(0.05, partial(self._stopping, server, until_s, stopped))
        else:
            stopped.set()

    # -- direct streams ------------------------------------------------------------------------------------

    def listen(self, host: str, tls: object) -> SimulatedListener:
        listener = SimulatedListener(self, self._scheduler, self._process, next(self._ports))
        self.listeners[listener.port] = listener
        return listener

    def connect(self, host: str, port: int, token: bytes, tls: object, timeout_s: float) -> SimulatedConnection:
        client, listener = self._process, self.listeners.get(port)
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        server = listener.process
        ends = Ends(self, self._scheduler, client, server)
        call: Any = ends
        self._wires[call] = Wire(client, server, "", self._slowness(client, server), self._scheduler.now_s)
        self.carry(call, partial(listener.call, token, ends.server), True)
        return ends.client

    def name(self, ends: Any, method: str) -> None:
        """Record the method of a direct stream."""
        if ends in self._wires:
            self._wires[ends].method = method

    # -- calls ---------------------------------------------------------------------------------------------

    def begin(self, call: Call, address: str, details: Details) -> None:
        client = self._process
        server = self.server_at(address)
        if server is None or not isinstance(server, SimulatedServer):
            why = Failure(grpc.StatusCode.UNAVAILABLE, f"no server at {address}")
            self._scheduler.at(self._delay_s(), lambda: call.ended(why))
            return
        slowness = self._slowness(client, server.process)
        self._wires[call] = Wire(client, server.process, details.method, slowness, self._scheduler.now_s)
        self.carry(call, partial(self._accept, call, server, details), True)

    def _accept(self, call: Call, server: SimulatedServer, details: Details) -> None:
        self._scheduler.spawn(server.process, "accept", partial(self._handle, call, server, details))

    def _handle(self, call: Call, server: SimulatedServer, details: Details) -> None:
        try:
            server.handle(call, details)
        except RuntimeError:  # its threads were stopped meanwhile
            self._break(call, "the server has stopped")

    def carry(self, call: Call, deliver: Callable[[], None], up: bool) -> None:
        wire = self._wires.get(call)
        if wire is None:
            return
        now_s = self._scheduler.now_s
        wire.arrives_s[up] = max(now_s + wire.slowness * self._delay_s(), wire.arrives_s[up])
        wire.under_way[up].append(deliver)
        self._scheduler.at_moment(wire.arrives_s[up], partial(self._arrive, call, wire, up))

    def _arrive(self, call: Call, wire: Wire, up: bool) -> None:
        """The first message under way arrives: after a cut, a later one may have been due before it."""
        sender, receiver = (wire.client, wire.server) if up else (wire.server, wire.client)
        if wire.broken:
            return
        if not receiver.alive:
            if up and wire.begun_s is not None:
                self._scheduler.at_moment(wire.begun_s + CONNECT_S, partial(self._break, call, "not connected"))
            return
        if self._awaited:
            self._reached(wire.method, wire.client, wire.server, late=False)
            if wire.broken or not receiver.alive:
                return
        until_s = self._cut_until_s.get((sender, receiver), 0.0)
        if until_s > self._scheduler.now_s:
            wire.arrives_s[up] = max(until_s, wire.arrives_s[up])
            self._scheduler.at_moment(until_s, partial(self._arrive, call, wire, up))
        else:
            if up:
                wire.begun_s = None
            wire.under_way[up].popleft()()
            if wire.over and not wire.under_way[True]:
                self._wires.pop(call, None)
            if self._awaited:
                reached = partial(self._reached, wire.method, wire.client, wire.server, late=True)
                self._scheduler.at(self._delay_s(), reached)

    def _slowness(self, client: Process, server: Process) -> float:
        """How much longer messages take between these processes than on an average link."""
        if (client, server) not in self._slownesses:
            distant = self._scheduler.random.random() < self._far
            self._slownesses[client, server] = max(1.0, min(FAR, FAR_S / self.mean_s)) if distant else 1.0
        return self._slownesses[client, server]

    def _delay_s(self) -> float:
        return self._scheduler.random.expovariate(1 / self.mean_s)

    def over(self, call: Call) -> None:
        wire = self._wires.get(call)
        if wire is not None:  # a cancellation may still be under way to the server
            wire.over = True

    # -- faults --------------------------------------------------------------------------------------------

    def await_message(self, method: str, late: bool, call: Callable[[Process, Process], None]) -> None:
        """Call a function with client and server of the next call of which a message arrives.

        Parameters
        ----------
        late
            Whether it is called shortly after that message was delivered, else just before.
        """
        self._awaited.setdefault((method, late), []).append(call)

    def passes(self, method: str, client: Process, server: Process, late: bool) -> None:
        """A message of a local stream is about to arrive, or has just arrived."""
        if self._awaited:
            if late:
                self._scheduler.at(self._delay_s(), partial(self._reached, method, client, server, late=True))
            else:
                self._reached(method, client, server, late=False)

    def _reached(self, method: str, client: Process, server: Process, late: bool) -> None:
        for call in self._awaited.pop((method, late), ()):
            call(client, server)

    def cut(self, one: Process, other: Process, seconds: float, both_ways: bool) -> None:
        """Hold back all messages from `one` to `other`, and in the other direction if `both_ways`, for some time."""
        until_s = self._scheduler.now_s + seconds
        self._cut_until_s[one, other] = until_s
        if both_ways:
            self._cut_until_s[other, one] = until_s
        if seconds > KEEPALIVE_S:
            self._scheduler.at(KEEPALIVE_S, lambda: self.break_calls(one, other))

    def break_calls(self, one: Process, other: Process | None = None, served: bool = False) -> int:
        """Break all calls between two processes, or all calls of one, or those that it serves; returns how many."""
        ends = {one, other}

        def hit(wire: Wire) -> bool:
            if other is not None:
                return {wire.client, wire.server} == ends
            return wire.server is one or (wire.client is one and not served)

        broken = [call for call, wire in self._wires.items() if hit(wire)]
        for call in broken:
            self._break(call, "connection reset")
        return len(broken)

    def _break(self, call: Call, why: str) -> None:
        """End a call at both ends."""
        wire = self._wires.pop(call, None)
        if wire is None or wire.broken:
            return
        wire.broken = True
        if wire.client.alive:
            call.ended(Failure(grpc.StatusCode.UNAVAILABLE, why))
        if wire.server.alive:
            call.requests.put(Failure(grpc.StatusCode.CANCELLED, why))

    def ended(self, process: Process, vanished: bool) -> None:
        """A process has ended: its peers notice that at once, or by keepalive where its machine has vanished."""
        self._scheduler.at(KEEPALIVE_S if vanished else self._delay_s(), lambda: self.break_calls(process))
