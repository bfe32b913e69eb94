"""What a shard lets a connection attach, and what it lets it name."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dbelief.errors import Moved, Refused
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import segments_pb2 as segments
from dbelief.rpc.frames import Part, Slot
from dbelief.shared import HEADER_BYTES, Block, make_block
from ps_server.attached import Attached

Answer = Callable[[wire.AttachRequest], wire.AttachReply]
COUNT = 1000


def made(count: int = COUNT) -> Block:
    block = make_block(8 * count)
    assert block is not None
    return block


def attach(answer: Answer, block: Block, left: tuple[str, ...] = ()) -> str:
    """Offer a block; "", or why it is not attached."""
    offered = wire.SharedBlock(name=block.name, token=block.token, size=block.size)
    with block.offered() if block.offerable else contextlib.nullcontext():
        reply = answer(wire.AttachRequest(block=offered, left=left))
    assert reply.attached != bool(reply.refusal)
    return reply.refusal


@pytest.fixture
def attached() -> Attached:
    return Attached()


@pytest.fixture
def block(attached: Attached) -> Iterator[Block]:
    """One that the connection "me" has attached."""
    block = made()
    with attached.connected("me") as answer:
        assert attach(answer, block) == ""
        yield block


def part(slot: Slot, length: int = 4, codec: int = segments.CODEC_FP32) -> Part:
    return Part(5, length=length, codec=codec, slot=slot)


@pytest.mark.parametrize(("codec", "dtype"), [(segments.CODEC_FP32, np.float32), (segments.CODEC_FP64, np.float64)])
def test_numbers_are_used_where_they_lie(attached: Attached, block: Block, codec: int, dtype: type) -> None:
    size = np.dtype(dtype).itemsize
    here: np.ndarray = block.bytes(HEADER_BYTES, 8 * COUNT).view(dtype)
    here[:] = np.arange(here.size)
    blocks = attached.of("me")
    slot = Slot(block.name, HEADER_BYTES + 3 * size, 4 * size)
    there = blocks.numbers(part(slot, codec=codec))
    assert there.dtype == dtype
    np.testing.assert_array_equal(there, [3, 4, 5, 6])
    here[4] = -1
    assert there[1] == -1
    blocks.put(slot, np.array([9, 8, 7, 6], dtype))
    np.testing.assert_array_equal(here[:8], [0, 1, 2, 9, 8, 7, 6, 7])


def test_a_payload_in_the_message_is_read_there(attached: Attached) -> None:
    values = np.arange(3, dtype=np.float32)
    found = attached.of("me").numbers(Part(length=3, data=values.data.cast("B")))
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("offset", "bytes_", "length", "codec", "reason"),
    [
        (HEADER_BYTES, 16, 5, segments.CODEC_FP32, "a slot of 16 bytes for 5 numbers"),
        (HEADER_BYTES, 16, 4, segments.CODEC_FP64, "a slot of 16 bytes for 4 numbers"),
        (HEADER_BYTES, 8, 4, segments.CODEC_FP16, "a slot of 8 bytes for 4 numbers"),
        (HEADER_BYTES + 2, 16, 4, segments.CODEC_FP32, "no number of 4 bytes begins there"),
        (HEADER_BYTES + 4, 32, 4, segments.CODEC_FP64, "no number of 8 bytes begins there"),
        (0, 16, 4, segments.CODEC_FP32, "are not within a block"),
        (HEADER_BYTES + 8 * COUNT - 12, 16, 4, segments.CODEC_FP32, "are not within a block"),
        ((1 << 64) - 4, 16, 4, segments.CODEC_FP32, "are not within a block"),
    ],
)
def test_a_slot_that_is_none_is_refused(
    attached: Attached, block: Block, offset: int, bytes_: int, length: int, codec: int, reason: str
) -> None:
    slot = Slot(block.name, offset, bytes_)
    with pytest.raises(Refused, match=reason):
        attached.of("me").numbers(part(slot, length, codec))
    with pytest.raises(Refused):
        attached.of("me").put(slot, np.zeros(length, np.float64 if codec == segments.CODEC_FP64 else np.float32))


def test_what_a_connection_attached_no_other_one_may_name(attached: Attached, block: Block) -> None:
    slot = Slot(block.name, HEADER_BYTES, 16)
    with pytest.raises(Moved, match="has no block"), attached.connected("you"):
        attached.of("you").numbers(part(slot))
    with pytest.raises(Moved, match="has no block"):
        attached.of("nobody").put(slot, np.zeros(4, np.float32))


def test_what_is_left_is_no_more_there_but_for_who_is_at_work_on_it(attached: Attached, block: Block) -> None:
    slot = Slot(block.name, HEADER_BYTES, 16)
    with attached.connected("me") as answer:  # another stream of the same connection
        assert not answer(wire.AttachRequest(left=[block.name])).attached  # not its own
        there = attached.of("me").numbers(part(slot))
        other = made()
        assert attach(answer, other) == ""
        assert attach(answer, made(), left=(other.name, "unknown")) == ""
        with pytest.raises(Moved):
            attached.of("me").numbers(part(Slot(other.name, HEADER_BYTES, 16)))
    assert len(attached.of("me").held) == 1
    np.testing.assert_array_equal(there, 0.0)


def test_memory_is_let_go_of_with_the_stream() -> None:
    attached, block = Attached(), made()
    with attached.connected("me") as answer:
        assert attach(answer, block) == ""
        there = attached.of("me").numbers(part(Slot(block.name, HEADER_BYTES, 16)))
    assert not attached.of("me").held
    block.bytes(HEADER_BYTES, 4).view(np.float32)[:] = 5.0
    assert there[0] == 5.0  # a handler that is at work on it has it still


def test_there_is_an_end_to_what_is_attached() -> None:
    blocks = [made() for _ in range(4)]
    attached = Attached(most_blocks=2, most_bytes=3 * blocks[0].size)
    with attached.connected("me") as mine, attached.connected("you") as yours:
        assert [attach(mine, block) for block in blocks[:2]] == ["", ""]
        assert "or 2 of this connection" in attach(mine, blocks[2])
        blocks[2].renew()
        assert attach(yours, blocks[2]) == ""
        assert f"takes no more than {3 * blocks[0].size}" in attach(yours, blocks[3])
        mine(wire.AttachRequest(left=[blocks[0].name]))
        blocks[3].renew()
        assert attach(yours, blocks[3]) == ""


def test_what_cannot_be_opened_takes_no_room() -> None:
    block = made()
    attached = Attached(most_bytes=block.size)
    with attached.connected("me") as answer:
        for _ in range(3):
            offered = wire.SharedBlock(name="0" * 32, token=bytes(32), size=block.size)
            assert "no such block" in answer(wire.AttachRequest(block=offered)).refusal
        assert attach(answer, block) == ""
        assert "has the block already" in attach(answer, block)


def test_who_shares_nothing_opens_nothing() -> None:
    attached = Attached(allowed=False)
    with attached.connected("me") as answer:
        assert attach(answer, made()) == "shares no memory"
