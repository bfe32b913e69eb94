"""Blocks that a connection may attach and name."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.shared_memory import HEADER_BYTES, Block, make_block, open_block
from dbelief.core.layout import SegmentSpan
from dbelief.errors import Moved, Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray
from ps_server.rpc.shared_memory import SharedMemoryRegistry

Answer = Callable[[wire.AttachRequest], wire.AttachReply]
COUNT = 1000


def made(count: int = COUNT) -> Block:
    block = make_block(8 * count)
    assert block is not None
    return block


def attach(answer: Answer, block: Block, left: tuple[str, ...] = ()) -> str:
    """Offer a block; "", or why it is not attached."""
    offered = wire.SharedBlock(name=block.name, token=block.token, size=block.size)
    with block.offered():
        reply = answer(wire.AttachRequest(block=offered, released=left))
    assert reply.attached != bool(reply.refusal)
    return reply.refusal


@pytest.fixture
def attached() -> SharedMemoryRegistry:
    return SharedMemoryRegistry()


@pytest.fixture
def block(attached: SharedMemoryRegistry) -> Iterator[Block]:
    """One that the connection "me" has attached."""
    block = made()
    with attached.connected("me") as answer:
        assert attach(answer, block) == ""
        yield block


def told(block: Block, offset: int = HEADER_BYTES, origin: int = 0) -> SharedArray:
    return SharedArray(block=block.name, offset=offset, origin=origin)


def test_numbers_are_used_where_they_lie(attached: SharedMemoryRegistry, block: Block) -> None:
    here = block.bytes(HEADER_BYTES, 8 * COUNT).view(np.float32)
    here[:] = np.arange(here.size)
    area, span = attached.of("me").area(told(block, HEADER_BYTES + 4 * 3, origin=100)), SegmentSpan(5, 102, 4)
    there = area.of(span)
    np.testing.assert_array_equal(there, [5, 6, 7, 8])
    here[6] = -1
    assert there[1] == -1
    area.put(span, np.array([9, 8, 7, 6], np.float32))
    np.testing.assert_array_equal(here[:10], [0, 1, 2, 3, 4, 9, 8, 7, 6, 9])


def test_numbers_of_another_size_are_not_put(attached: SharedMemoryRegistry, block: Block) -> None:
    here = block.bytes(HEADER_BYTES, 8 * COUNT)
    with pytest.raises(Rejected, match="segment 5: float64 numbers"):
        attached.of("me").area(told(block)).put(SegmentSpan(5, 0, 2), np.ones(2, np.float64))
    assert not here.any()


@pytest.mark.parametrize("start", [9, 10 + 2 * COUNT - 3, 0, 1 << 63])
def test_a_segment_that_is_not_within_the_block_is_refused(
    attached: SharedMemoryRegistry, block: Block, start: int
) -> None:
    area = attached.of("me").area(told(block, origin=10))
    reason = f"segment 5: numbers {start} to {start + 4} are not within a block that has {2 * COUNT} from 10 on"
    with pytest.raises(Rejected, match=reason):
        area.of(SegmentSpan(5, start, 4))
    with pytest.raises(Rejected, match=reason):
        area.put(SegmentSpan(5, start, 4), np.zeros(4, np.float32))
    for at_an_edge in (10, 10 + 2 * COUNT - 4):
        assert len(area.of(SegmentSpan(5, at_an_edge, 4))) == 4


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (HEADER_BYTES + 2, "no number of 4 bytes begins there"),
        (0, "are not within a block"),
        (HEADER_BYTES - 4, "are not within a block"),
        (HEADER_BYTES + 8 * COUNT + 4, "are not within a block"),
        ((1 << 64) - 4, "are not within a block"),
    ],
)
def test_an_array_that_is_none_is_refused(
    attached: SharedMemoryRegistry, block: Block, offset: int, reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        attached.of("me").area(told(block, offset))


def test_blocks_are_private_to_their_connection(attached: SharedMemoryRegistry, block: Block) -> None:
    with pytest.raises(Moved, match="has no block"), attached.connected("you"):
        attached.of("you").area(told(block))
    with pytest.raises(Moved, match="has no block"):
        attached.of("nobody").area(told(block))


def test_released_block_stays_for_calls_in_progress(attached: SharedMemoryRegistry, block: Block) -> None:
    with attached.connected("me") as answer:  # another stream of the same connection
        assert not answer(wire.AttachRequest(released=[block.name])).attached  # not its own
        there = attached.of("me").area(told(block)).of(SegmentSpan(0, 0, 4))
        other = made()
        assert attach(answer, other) == ""
        assert attach(answer, made(), left=(other.name, "unknown")) == ""
        with pytest.raises(Moved):
            attached.of("me").area(told(other))
    assert len(attached.of("me").held) == 1
    np.testing.assert_array_equal(there, 0.0)


def test_memory_is_released_with_the_stream() -> None:
    attached, block = SharedMemoryRegistry(), made()
    with attached.connected("me") as answer:
        assert attach(answer, block) == ""
        there = attached.of("me").area(told(block)).of(SegmentSpan(0, 0, 4))
    assert not attached.of("me").held
    block.bytes(HEADER_BYTES, 4).view(np.float32)[:] = 5.0
    assert there[0] == 5.0  # a handler that is at work on it has it still


def test_attached_blocks_and_bytes_are_limited() -> None:
    blocks = [made() for _ in range(4)]
    attached = SharedMemoryRegistry(most_blocks=2, most_bytes=3 * blocks[0].size)
    with attached.connected("me") as mine, attached.connected("you") as yours:
        assert [attach(mine, block) for block in blocks[:2]] == ["", ""]
        assert "or 2 of this connection" in attach(mine, blocks[2])
        blocks[2].renew()
        assert attach(yours, blocks[2]) == ""
        assert f"takes no more than {3 * blocks[0].size}" in attach(yours, blocks[3])
        mine(wire.AttachRequest(released=[blocks[0].name]))
        blocks[3].renew()
        assert attach(yours, blocks[3]) == ""


def test_failed_attachment_uses_no_quota() -> None:
    block = made()
    attached = SharedMemoryRegistry(most_bytes=block.size)
    with attached.connected("me") as answer:
        for _ in range(3):
            offered = wire.SharedBlock(name="0" * 32, token=bytes(32), size=block.size)
            assert "no such block" in answer(wire.AttachRequest(block=offered)).refusal
        assert attach(answer, block) == ""
        assert "has the block already" in attach(answer, block)


def test_disabled_registry_opens_nothing() -> None:
    attached = SharedMemoryRegistry(allowed=False)
    with attached.connected("me") as answer:
        assert attach(answer, made()) == "shares no memory"


def test_concurrently_attached_block_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attached, block = SharedMemoryRegistry(), made()
    opened = threading.Barrier(2)

    def both_at_once(*offered: Any) -> Block:
        one = open_block(*offered)
        opened.wait(60.0)
        return one

    monkeypatch.setattr("ps_server.rpc.shared_memory.open_block", both_at_once)
    offered = wire.AttachRequest(block=wire.SharedBlock(name=block.name, token=block.token, size=block.size))
    with attached.connected("me") as mine, attached.connected("me") as other, block.offered():
        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(answer, offered) for answer in (mine, other)]
        assert sorted(reply.result().attached for reply in replies) == [False, True]
    assert not attached._peers
    assert attached._bytes == 0
