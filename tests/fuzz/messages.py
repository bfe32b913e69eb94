"""Bad messages for every method, from one seed: the same numbers give the same messages, on any machine.

made       a message of the method's type whose fields hold anything: edges of their types, long texts, nonsense
noise      bytes that mean nothing
cut        a genuine message, or one that was made, less its end
bent       a genuine message with some bits turned
repeated   a genuine message, as it was sent before
long       a genuine message, and megabytes after it; now and then longer than a server takes in
"""

from __future__ import annotations

import contextlib
import random
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from dbelief.errors import DbeliefError
from dbelief.rpc.pb import coordination_pb2, parameters_pb2
from dbelief.rpc.server.server import MESSAGES
from dbelief.rpc.wire import bulk

KINDS = {"made": 40, "noise": 15, "cut": 15, "bent": 15, "repeated": 14.9, "long": 0.1}
"""How often each comes, in hundredths."""
LONG = 1 << 20, 4 << 20
"""Bytes after a long message that a server takes in."""
STREAMED = frozenset({"Pull", "Push", "Exchange", "Attach"})
_DEEPEST = 3
_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"))

Genuine = Mapping[str, Sequence[Sequence[bytes]]]
"""What real clients sent: by the full name of a method, calls, each the messages of its stream (of others, one)."""


@dataclass(frozen=True)
class Call:
    """One bad call: the full name of a method, its messages, and what is bad about them."""

    method: str
    messages: tuple[bytes, ...]
    kind: str

    @property
    def streamed(self) -> bool:
        """Whether it is a stream."""
        return self.method.rpartition("/")[2] in STREAMED


class Fuzzer:
    """Makes bad calls, one after another.

    Parameters
    ----------
    alive
        Lives (incarnations) that are somebody's: nothing new is said in their names. A worker's token allows its holder
        to train, so whoever forges a worker's message is one; what that worker did say may come again at any time.
    """

    def __init__(self, seed: int, genuine: Genuine, alive: frozenset[int] = frozenset()) -> None:
        self._random = random.Random(seed)
        self._alive = alive
        self._genuine = {method: calls for method, calls in genuine.items() if calls}
        files = (coordination_pb2.DESCRIPTOR, parameters_pb2.DESCRIPTOR)
        services = [service for file in files for service in file.services_by_name.values()]
        self._inputs: dict[str, Descriptor] = {
            f"/{service.full_name}/{method.name}": method.input_type
            for service in services
            for method in service.methods
        }

    def call(self) -> Call:
        """The next one."""
        (kind,) = self._random.choices(list(KINDS), list(KINDS.values()))
        source: Collection[str] = self._inputs
        if kind in ("bent", "repeated", "long"):
            if not self._genuine:
                return self.call()
            source = self._genuine
        method = self._random.choice(sorted(source))
        call = Call(method, tuple(getattr(self, f"_{kind}")(method)), kind)
        return self.call() if kind != "repeated" and self._alive & set(self._speaks_for(call)) else call

    def longest(self) -> Iterator[Call]:
        """For each genuine call one with the longest message that a server takes in."""
        for method in sorted(self._genuine):
            call = Call(method, (b"".join((*self._one(method), bytes(LONG[-1]))),), "long")
            if not self._alive & set(self._speaks_for(call)):
                yield call

    def _speaks_for(self, call: Call) -> Iterator[int]:
        """Lives that its messages name."""
        for message in call.messages:
            with contextlib.suppress(DecodeError, DbeliefError):
                if call.method.endswith(("Push", "Exchange")):
                    opening, _ = bulk.decode(message)
                    if opening is not None:
                        yield parameters_pb2.PushOpening.FromString(opening).pusher.incarnation
                else:
                    said: Any = GetMessageClass(self._inputs[call.method]).FromString(message)
                    yield said.pusher.incarnation if hasattr(said, "pusher") else getattr(said, "incarnation", 0)

    def _made(self, method: str) -> list[bytes]:
        return [self._message(self._inputs[method], 0).SerializeToString() for _ in range(self._random.randint(1, 3))]

    def _noise(self, method: str) -> list[bytes]:
        return [self._random.randbytes(self._random.choice((0, 1, 7, 100, 4_000))) for _ in range(2)]

    def _cut(self, method: str) -> list[bytes]:
        whole = self._one(method) if method in self._genuine else self._made(method)
        *before, last = whole[: self._random.randint(1, len(whole))]
        return [*before, last[: self._random.randint(0, max(0, len(last) - 1))]]

    def _bent(self, method: str) -> list[bytes]:
        messages = list(self._one(method))
        index = self._random.randrange(len(messages))
        bits = bytearray(messages[index])
        for _ in range(self._random.choice((1, 1, 2, 8)) if bits else 0):
            bits[self._random.randrange(len(bits))] ^= 1 << self._random.randrange(8)
        messages[index] = bytes(bits)
        return messages

    def _repeated(self, method: str) -> list[bytes]:
        return list(self._one(method))

    def _long(self, method: str) -> list[bytes]:
        _, longest = MESSAGES
        more = self._random.choice((LONG[0], *LONG, longest + 1))
        return [b"".join((*self._one(method), bytes(more)))]

    def _one(self, method: str) -> Sequence[bytes]:
        return self._random.choice(self._genuine[method])

    # -- messages of a type ------------------------------------------------------------------------------------

    def _message(self, kind: Descriptor, depth: int) -> Any:
        message = GetMessageClass(kind)()
        for field in kind.fields:
            if self._random.random() < 0.3:
                continue
            if field.message_type is not None:
                self._nest(message, field, field.message_type, depth)
            elif field.is_repeated:
                getattr(message, field.name).extend(self._value(field) for _ in range(self._random.randint(0, 3)))
            else:
                setattr(message, field.name, self._value(field))
        return message

    def _nest(self, message: Any, field: FieldDescriptor, kind: Descriptor, depth: int) -> None:
        if depth == _DEEPEST or kind.GetOptions().map_entry:
            return
        for _ in range(self._random.randint(0, 3) if field.is_repeated else 1):
            inner = self._message(kind, depth + 1)
            (getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)).CopyFrom(inner)

    def _value(self, field: FieldDescriptor) -> Any:
        if field.cpp_type in _INTS:
            bits, signed = _INTS[field.cpp_type]
            lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
            return self._random.choice((0, 1, lowest, highest, self._random.randint(lowest, highest)))
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self._random.random() < 0.5
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return self._random.randint(-1, 9)
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self._random.choice(_FLOATS)
        length = self._random.choice((0, 1, 8, 300, 70_000))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._random.randbytes(length)
        return "".join(self._random.choices(string.printable + "äß\u2028\u0000", k=min(length, 1_000))) * (
            1 + length // 1_000
        )
