"""The distributed array: any boxes on any ranks against the whole array, its transpose, its traffic, its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import RankFailure, Unavailable
from dbelief.partition import Grid, Window
from tests.worker.partition.exchanges import EDGE, Case, check
from worker.comm import Communicator, run_ranks
from worker.partition import DistributedArray

DEADLINE_S = 60.0


@st.composite
def windows(draw: Any, height: int, width: int, edge: int = 0) -> Window:
    rows = sorted(draw(st.tuples(*[st.integers(-edge, height + edge)] * 2)))
    columns = sorted(draw(st.tuples(*[st.integers(-edge, width + edge)] * 2)))
    return Window((rows[0], columns[0]), (rows[1], columns[1]))


@st.composite
def cases(draw: Any, overlapping: bool) -> Case:
    """Outputs of a grid, or anywhere; inputs anywhere, some beyond the array, where it is declared zero."""
    height, width = draw(st.integers(0, 14)), draw(st.integers(0, 14))
    grid = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    outputs = grid.windows(height, width)
    if overlapping:
        outputs = [draw(windows(height, width)) for _ in outputs]
    inputs = tuple(draw(windows(height, width, EDGE)) for _ in outputs)
    everywhere = Window((-EDGE, -EDGE), (height + EDGE, width + EDGE))
    before, after = draw(st.integers(0, 2)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16, np.int32]))
    return Case(height, width, before, after, tuple(outputs), inputs, (everywhere,), dtype, draw(st.integers(0, 99)))


@given(cases(overlapping=False))
def test_any_inputs_are_slices_of_the_whole_array(case: Case) -> None:
    run_ranks(len(case.outputs), lambda comm: check(comm, case), DEADLINE_S)


@given(cases(overlapping=True))
def test_outputs_that_meet_are_summed_in_rank_order(case: Case) -> None:
    run_ranks(len(case.outputs), lambda comm: check(comm, case), DEADLINE_S)


def test_threads_that_take_turns_often(eager_threads: None) -> None:
    grid = Grid(2, 3)
    inputs = tuple(Window((a - 3, c - 5), (b + 4, d + 2)) for a, b, c, d in _edges(grid.windows(17, 13)))
    everywhere = Window((-EDGE, -EDGE), (17 + EDGE, 13 + EDGE))
    case = Case(17, 13, 1, 2, tuple(grid.windows(17, 13)), inputs, (everywhere,), np.float64, 0)
    for _ in range(5):
        run_ranks(grid.size, lambda comm: check(comm, case), DEADLINE_S)


def _edges(windows: list[Window]) -> list[tuple[int, int, int, int]]:
    return [(w.start[0], w.stop[0], w.start[1], w.stop[1]) for w in windows]


def test_the_example_of_the_paper() -> None:
    """200 x 200 pixels on 2 x 2 ranks, fields of 20 at stride 4: 46 blocks each way, and a halo of 8 pixels."""
    grid, field, stride = Grid(2, 2), 20, 4
    blocks = grid.windows((200 - field) // stride + 1, (200 - field) // stride + 1)
    reads = [
        Window(tuple(a * stride for a in w.start), tuple((b - 1) * stride + field for b in w.stop)) for w in blocks
    ]
    assert [str(window) for window in (blocks[0], reads[0], reads[3])] == [
        "[0:23, 0:23]",
        "[0:108, 0:108]",
        "[92:200, 92:200]",
    ]

    def body(comm: Communicator) -> int:
        array = DistributedArray(comm, (200, 200, 3), np.float32, grid.windows(200, 200), reads)
        whole = np.arange(200 * 200 * 3, dtype=np.float32).reshape(200, 200, 3)
        taken = array.gather(whole[array.output.within(Window.whole(array.shape))])
        np.testing.assert_array_equal(taken, whole[array.input.within(Window.whole(array.shape))])
        return sum(message.array.nbytes for message in array.gather._messages if message.sends)

    assert run_ranks(4, body) == [(8 * 100 + 100 * 8 + 8 * 8) * 3 * 4] * 4


def test_a_negative_zero_survives_a_copy() -> None:
    def body(comm: Communicator) -> bytes:
        whole = Window((0,), (2,))
        array = DistributedArray(comm, (2,), np.float32, [Window((0,), (1,)), Window((1,), (2,))], [whole, whole])
        return bytes(array.gather(np.array([-0.0], np.float32)).tobytes())

    assert run_ranks(2, body) == [np.array([-0.0, -0.0], np.float32).tobytes()] * 2


LINE = [Window((0,), (3,)), Window((3,), (6,))]


def _line(comm: Communicator, inputs: list[Window], outputs: list[Window] = LINE, **more: Any) -> DistributedArray:
    return DistributedArray(comm, (6,), np.float64, outputs, inputs, **more)


@pytest.mark.parametrize(
    ("inputs", "outputs", "more", "reason"),
    [
        ([Window((0,), (7,)), LINE[1]], LINE, {}, r"rank 0 reads \[0:7\], of which no rank writes \[6:7\]"),
        ([LINE[0], Window((0,), (6,))], [LINE[0], Window((4,), (6,))], {}, r"rank 1 reads \[0:6\], .* \[3:4\]"),
        ([Window((-2,), (2,)), LINE[1]], LINE, {"zero": [Window((-1,), (0,))]}, r"no rank writes \[-2:-1\]"),
        (LINE, [LINE[0], Window((3,), (7,))], {}, r"rank 1 writes \[3:7\], outside an array of shape \(6,\)"),
        (LINE[:1], LINE, {}, "2 outputs and 1 inputs for 2 ranks"),
        (LINE, LINE, {"first_axis": 1}, r"does not fit the axes of \(6,\) from axis 1 on"),
    ],
)
def test_a_wrong_plan_is_refused_by_every_rank(inputs: Any, outputs: Any, more: Any, reason: str) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=reason):
            _line(comm, inputs, outputs, **more)

    run_ranks(2, body)


def test_wrong_calls_are_refused() -> None:
    def body(comm: Communicator) -> None:
        array = _line(comm, LINE)
        with pytest.raises(ValueError, match=r"has float64 on \[.*\], of shape \(3,\), not float32 of shape \(3,\)"):
            array.gather(np.zeros(3, np.float32))
        with pytest.raises(ValueError, match=r"of shape \(2,\)"):
            array.scatter_add(np.zeros(2))
        with pytest.raises(ValueError, match="not started"):
            array.gather.finish()
        array.gather.start(np.zeros(3))
        with pytest.raises(ValueError, match="not finished"):
            array.gather.start(np.zeros(3))

    run_ranks(2, body)


def test_a_rank_that_dies_in_an_exchange_is_named() -> None:
    def body(comm: Communicator) -> None:
        array = _line(comm, [Window((0,), (6,))] * 2)
        if comm.rank == 1:
            raise MemoryError("no room")
        with pytest.raises(RankFailure, match=r"rank 1 died of MemoryError: no room") as failed:
            array.gather(np.zeros(3))
        ends.append(str(failed.value))

    ends: list[str] = []
    with pytest.raises(MemoryError):
        run_ranks(2, body)
    assert len(ends) == 1


def test_a_rank_that_does_not_take_part_is_named() -> None:
    def body(comm: Communicator) -> None:
        array = _line(comm, [Window((0,), (6,))] * 2)
        if comm.rank == 0:
            array.gather(np.zeros(3))

    with pytest.raises(Unavailable, match=r"rank 1 to send 24 bytes \(tag 0\)"):
        run_ranks(2, body, deadline_s=0.2)
