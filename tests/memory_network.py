"""A transport in memory: channels and servers of one process, without sockets; messages are bytes, as on a wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, NoReturn

import grpc

from dbelief.process.runtime import Empty, Event, Queue, runtime
from dbelief.rpc.transport import Options, Transport

_END = object()


class Failure(grpc.RpcError):
    """The status of a call that failed."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.status = code, details

    def code(self) -> grpc.StatusCode:
        return self.status[0]

    def details(self) -> str:
        return self.status[1]

    def result(self) -> NoReturn:
        raise self


class Details(NamedTuple):
    """What interceptors see of a call: `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Sequence[tuple[str, str]]


class Call:
    """One call, seen by its client: an iterator of replies, and the future of a unary reply."""

    def __init__(self, network: MemoryNetwork, read: Callable[[bytes], Any] | None, peer: str = "memory") -> None:
        self._network = network
        self.peer = peer
        self.requests: Queue[Any] = runtime.queue()
        self._replies: Queue[Any] = runtime.queue()
        self._read = read or (lambda message: message)
        self._ended = runtime.event()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._take(None)

    def _take(self, timeout: float | None) -> Any:
        reply = self._replies.get(timeout=timeout)
        if reply is _END or isinstance(reply, Failure):
            self._replies.put(reply)  # a further read finds it again
            if isinstance(reply, Failure):
                raise reply
            raise StopIteration
        return self._read(reply)

    def result(self, timeout: float | None = None) -> Any:
        try:
            return self._take(timeout)
        except Empty:
            raise grpc.FutureTimeoutError from None

    def is_active(self) -> bool:
        return not self._ended.is_set()

    def cancel(self, code: grpc.StatusCode = grpc.StatusCode.CANCELLED, why: str = "cancelled by the client") -> None:
        """End it at its client, and then at its server."""
        self._network.carry(self, lambda: self.requests.put(Failure(grpc.StatusCode.CANCELLED, why)), True)
        self.ended(Failure(code, why))

    def request(self, message: Any) -> None:
        """Send a message to the server; `_END`: half-close."""
        self._network.carry(self, lambda: self.requests.put(message), True)

    def only_request(self, message: bytes) -> None:
        """Send a message to the server and half-close, in one piece."""

        def deliver() -> None:
            self.requests.put(message)
            self.requests.put(_END)

        self._network.carry(self, deliver, True)

    def reply(self, message: bytes) -> None:
        """Send a message to the client."""
        self._network.carry(self, lambda: self._replies.put(message), False)

    def only_reply(self, message: bytes) -> None:
        """Send a message to the client and end the call, in one piece: a client cannot have one without the other."""

        def deliver() -> None:
            self._replies.put(message)
            self.ended(_END)

        self._network.carry(self, deliver, False)

    def end(self, how: Any = _END) -> None:
        """End it at its server, and then at its client."""
        self._network.carry(self, lambda: self.ended(how), False)

    def ended(self, how: Any) -> None:
        """End it at its client."""
        if not self._ended.is_set():
            self._ended.set()
            self._replies.put(how)
            self._network.over(self)


class Context:
    """One call, seen by its handler: what of `grpc.ServicerContext` the handlers use."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._code, self._details = grpc.StatusCode.UNKNOWN, ""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._call.end(Failure(code, details))
        raise Failure(code, details)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return self._call.peer


class MemoryServer:
    """A server of the network: `grpc.Server`."""

    def __init__(self, network: MemoryNetwork, threads: Executor, interceptors: Sequence[Any]) -> None:
        self._network, self._threads, self._interceptors = network, threads, interceptors
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self.address = ""

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """These are found first, as gRPC finds them."""
        self._registered |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        self.address, port = self._network.bind(address)
        return port

    def start(self) -> None:
        self._network.start(self.address, self)

    def stop(self, grace_s: float | None) -> Any:
        stopped = runtime.event()
        self._network.stop(self.address, self, grace_s, stopped)
        return stopped

    def handle(self, call: Call, details: Details) -> None:
        """Run the call's handler on a thread of the server's."""
        find: Callable[[Any], Any] = self._find
        for interceptor in reversed(self._interceptors):
            find = _around(interceptor, find)
        handler = find(details)
        if handler is None:
            call.end(Failure(grpc.StatusCode.UNIMPLEMENTED, details.method))
        else:
            self._threads.submit(self._run, handler, call)

    def _find(self, details: Any) -> Any:
        generic = (found for one in self._generic if (found := one.service(details)) is not None)
        return self._registered.get(details.method) or next(generic, None)

    def _run(self, handler: Any, call: Call) -> None:
        read, write = handler.request_deserializer or _same, handler.response_serializer or _same

        def requests() -> Iterator[Any]:
            while (request := call.requests.get()) is not _END:
                if isinstance(request, Failure):
                    raise request
                yield read(request)

        context = Context(call)
        try:
            if handler.stream_stream is not None:
                for reply in handler.stream_stream(requests(), context):
                    call.reply(write(reply))
                call.end()
            else:
                call.only_reply(write(handler.unary_unary(next(requests()), context)))
        except Failure as failure:
            call.end(failure)
        except Exception as error:
            call.end(Failure(grpc.StatusCode.UNKNOWN, str(error)))


class MemoryChannel(grpc.Channel):
    """A channel of the network."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network, self._address = network, address
        self._name = network.new_connection()
        self._calls: list[Call] = []

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        self._network.when_started(self._address, callback)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        pass

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        write = request_serializer or _same

        def begin(request: Any, metadata: Any) -> Call:
            call = self._begin(method, response_deserializer, metadata)
            call.only_request(write(request))
            return call

        return _Unary(begin)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *_: Any, **__: Any
    ) -> Any:
        write = request_serializer or _same

        def begin(requests: Iterator[Any], timeout: float | None = None, metadata: Any = None, **__: Any) -> Call:
            call = self._begin(method, response_deserializer, metadata)
            runtime.spawn(_feed, "requests", call, requests, write)
            return call

        return begin

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        return lambda *_, **__: NotImplemented

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        return lambda *_, **__: NotImplemented

    def _begin(self, method: str, read: Callable[[bytes], Any] | None, metadata: Any) -> Call:
        call = Call(self._network, read, self._name)
        self._calls = [one for one in self._calls if one.is_active()]
        self._calls.append(call)
        self._network.begin(call, self._address, Details(method, tuple(metadata or ())))
        return call

    def close(self) -> None:
        for call in self._calls:
            if call.is_active():
                call.cancel()

    def __enter__(self) -> MemoryChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Unary:
    """A unary method of a channel."""

    def __init__(self, begin: Callable[[Any, Any], Call]) -> None:
        self._begin = begin

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any) -> Any:
        return self.with_call(request, timeout, metadata)[0]

    def with_call(self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any) -> tuple[Any, Call]:
        call = self._begin(request, metadata)
        try:
            return call.result(timeout), call
        except grpc.FutureTimeoutError:
            late = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            call.cancel(*late.status)
            raise late from None

    def future(self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any) -> Call:
        return self._begin(request, metadata)


class MemoryNetwork(Transport):
    """All addresses of one network; a port 0 is the next free one.

    Several servers may share an address, as pods behind a service do: the one that started last is reached.
    """

    def __init__(self) -> None:
        self._lock = runtime.reentrant_lock()
        self._servers: dict[str, list[MemoryServer]] = {}
        self._waiting: dict[str, list[Callable[[grpc.ChannelConnectivity], None]]] = {}
        self._port = 10_000
        self._connections = 0

    def new_connection(self) -> str:
        """Name of a channel, as its server sees it."""
        with self._lock:
            self._connections += 1
            return f"memory:{self._connections}"

    def channel(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        return MemoryChannel(self, address)

    def server(self, threads: Executor, interceptors: Sequence[Any], options: Options, calls: int) -> Any:
        return MemoryServer(self, threads, interceptors)

    def bind(self, address: str) -> tuple[str, int]:
        """The address with its port."""
        host, _, port = address.rpartition(":")
        with self._lock:
            self._port += port == "0"
        number = int(port) or self._port
        return f"{host}:{number}", number

    def start(self, address: str, server: MemoryServer) -> None:
        with self._lock:
            self._servers.setdefault(address, []).append(server)
            waiting = self._waiting.pop(address, [])
        for callback in waiting:
            callback(grpc.ChannelConnectivity.READY)

    def stop(self, address: str, server: MemoryServer, grace_s: float | None, stopped: Event) -> None:
        """Accept no further calls; set `stopped`."""
        with self._lock:
            servers = self._servers.get(address, [])
            if server in servers:
                servers.remove(server)
        stopped.set()

    def server_at(self, address: str) -> MemoryServer | None:
        """The server that calls to an address reach; None where there is none."""
        servers = self._servers.get(address)
        return servers[-1] if servers else None

    def begin(self, call: Call, address: str, details: Details) -> None:
        """Connect a call to the server at an address."""
        with self._lock:
            server = self.server_at(address)
        if server is None:
            call.ended(Failure(grpc.StatusCode.UNAVAILABLE, f"no server at {address}"))
        else:
            server.handle(call, details)

    def carry(self, call: Call, deliver: Callable[[], None], up: bool) -> None:
        """Deliver a message of a call to its server (`up`) or its client, after those sent before it."""
        deliver()

    def over(self, call: Call) -> None:
        """Forget a call that has ended at its client."""

    def when_started(self, address: str, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        with self._lock:
            started = self.server_at(address) is not None
            if not started:
                self._waiting.setdefault(address, []).append(callback)
        if started:
            callback(grpc.ChannelConnectivity.READY)


def _feed(call: Call, requests: Iterator[Any], write: Callable[[Any], bytes]) -> None:
    for request in requests:
        if not call.is_active():
            return
        call.request(write(request))
    call.request(_END)


def _same(message: Any) -> Any:
    return message


def _around(interceptor: Any, find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda details: interceptor.intercept_service(find, details)
