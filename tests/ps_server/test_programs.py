"""Programs over the vectors of a shard: NumPy's numbers for any program, and no effect of an invalid one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.core.push import Push
from dbelief.core.vector_program import Operation, copy, dots, lincomb, norm1, opposed, orthant, pseudo, validate
from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire.convert import program_to_wire
from dbelief.telemetry.metrics import Metrics
from ps_server import controller
from ps_server.programs import ProgramExecutor
from tests.local_vectors import LocalSpace
from tests.ps_server.servers import A, Job, status

if TYPE_CHECKING:
    from tests.ps_server.conftest import Subject

Make = Callable[..., "Subject"]

NAMES = ["w", "a", "b", "c", "d"]
FACTORS = st.floats(-4, 4, width=32)


@st.composite
def operations(draw: Any) -> Operation:
    """Any operation on some of the names, right or reading what is not there."""
    name = st.sampled_from(NAMES)
    kind = draw(st.sampled_from(["copy", "dots", "lincomb", "norm1", "pseudo", "opposed", "orthant"]))
    if kind == "dots":
        return dots(*draw(st.lists(st.tuples(name, name), min_size=1, max_size=4)))
    if kind == "lincomb":
        return lincomb(draw(name), *draw(st.lists(st.tuples(FACTORS, name), min_size=1, max_size=5)))
    if kind == "copy":
        return copy(draw(name), draw(name))
    exempt = tuple(sorted(draw(st.sets(st.integers(0, 100), max_size=6))))
    exempt = exempt[: len(exempt) // 2 * 2]
    if kind == "norm1":
        return norm1(draw(name), exempt)
    if kind == "pseudo":
        return pseudo(draw(name), draw(name), draw(name), draw(st.floats(0, 2)), exempt)
    if kind == "opposed":
        return opposed(draw(name), draw(name), exempt)
    return orthant(draw(name), draw(name), draw(name), exempt)


@pytest.fixture
def run() -> Iterator[Callable[..., list[float]]]:
    """Run programs on subjects."""
    opened: dict[int, ProgramExecutor] = {}

    def run(subject: Subject, *program: Operation) -> list[float]:
        key = id(subject.shard)
        if key not in opened:
            opened[key] = ProgramExecutor(subject.shard)
        return opened[key].run(program)

    yield run
    for programs in opened.values():
        programs.close()


def refused_whole(subject: Subject, programs: ProgramExecutor, program: Sequence[Operation], reason: str) -> None:
    before = subject.everything()
    with pytest.raises(Rejected) as caught:
        programs.run(program)
    assert str(caught.value) == reason
    assert subject.everything() == before


@given(st.data())
def test_it_is_numpys_numbers(make: Make, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.standard_normal(sum(lengths)).astype(np.float32)
    subject = make(lengths, initial=values)
    programs, space = ProgramExecutor(subject.shard), LocalSpace({"w": values}, np.float32)
    held = {"w"}
    try:
        for program in data.draw(st.lists(st.lists(operations(), max_size=4), min_size=1, max_size=4)):
            try:
                validate(program, held)
            except Rejected as error:
                refused_whole(subject, programs, program, str(error))
                continue
            expected = space.run(program)
            held = set(space.vectors)
            scale = 1 + sum(float(np.abs(v.astype(np.float64)).sum()) ** 2 for v in space.vectors.values())
            np.testing.assert_allclose(programs.run(program), expected, rtol=1e-12, atol=1e-12 * scale)
            for name in held:
                np.testing.assert_array_equal(subject.read(name), space.vectors[name])
    finally:
        programs.close()


def test_scalars_are_summed_in_float64(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((100_000, 100_000), initial=0.1)
    exact = 200_000 * float(np.float32(0.1)) ** 2
    assert run(subject, dots(("w", "w")))[0] == pytest.approx(exact, rel=1e-12)


def test_accrued_is_float64(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((3, 2), initial=1.0)
    run(subject, lincomb("accrued", (1e-9, "w"), (1.0, "w")), lincomb("w", (1.0, "accrued"), (-1.0, "w")))
    assert subject.shard.segments[0].vectors["accrued"].dtype == np.float64
    assert subject.read() == pytest.approx(np.full(5, 1e-9), rel=1e-6)


def test_non_finite_result_is_returned(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((2, 2), initial=np.array([1, np.nan, 2, 3]))
    assert np.isnan(run(subject, dots(("w", "w")))).all()


def test_a_gradient_that_is_no_number_shows_in_the_pseudo_gradient(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((2, 2), initial=np.array([0, 0, 1, -1]))
    subject.assign(np.array([np.nan, 1, np.nan, np.nan]), "g")
    run(subject, pseudo("d", "w", "g", 2.0))
    np.testing.assert_array_equal(subject.read("d"), [np.nan, 0, np.nan, np.nan])


def test_a_shard_without_segments_adds_nothing(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((), initial=None)
    assert run(subject, copy("a", "w"), dots(("a", "a"), ("x", "y"))) == [0, 0]


def test_programs_raise_versions_of_written_vectors(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((4,), initial=1.0)
    for program in ([copy("a", "w")], [lincomb("a", (2.0, "a"))]):
        before = subject.shard.segments[0].version
        run(subject, *program)
        assert subject.shard.segments[0].version > before
        assert subject.shard.pull("a", 0, before)[1] is not None
    before = subject.shard.segments[0].version
    run(subject, dots(("w", "a")))
    assert subject.shard.segments[0].version == before


def test_where_memory_is_short_nothing_has_changed(make: Make, run: Callable[..., list[float]]) -> None:
    subject = make((4, 4), initial=1.0)
    before = subject.everything()
    short = patch.object(np, "empty", side_effect=[np.zeros(4, np.float32), MemoryError])
    with short, pytest.raises(Rejected, match="there is no memory for a, b"):
        run(subject, lincomb("w", (2.0, "w")), copy("a", "w"), copy("b", "w"))
    assert subject.everything() == before


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Operation("sort", ("w",)), "operation 2, sort w: there is no such operation; there are copy, lincomb, dots, "),
        (Operation("copy", ("w",)), "1 vectors are not what it takes"),
        (Operation("dots", ("w", "w", "w")), "3 vectors are not what it takes"),
        (Operation("lincomb", ("w", "w"), (1.0, 2.0)), "takes 1 factors, got 2"),
        (lincomb("w", (float("nan"), "w")), "a factor is not finite"),
        (lincomb("w", (1.0, "x")), "reads 'x', which holds nothing"),
        (opposed("x", "w"), "reads 'x', which holds nothing"),
        (norm1("w", (3, 1)), "2 numbers that are no rising starts and stops of ranges"),
        (Operation("copy", ("w", "w"), (), (0, 1)), "exempts nothing"),
    ],
)
def test_a_wrong_program_is_refused_whole(
    make: Make, run: Callable[..., list[float]], operation: Operation, reason: str
) -> None:
    subject = make((4, 4), initial=1.0)
    before = subject.everything()
    with pytest.raises(Rejected, match=reason):
        run(subject, lincomb("w", (2.0, "w")), operation)
    assert subject.everything() == before


# -- over the wire -------------------------------------------------------------------------------------------


def operate(job: Job, *program: Operation, number: int = 0, **fields: Any) -> Sequence[float]:
    fields = {"command": job.command(), "target": job.target(number), **fields}
    return job.stubs[number].Operate(wire.OperateRequest(program=program_to_wire(program), **fields)).scalars


def test_a_command_that_comes_again_is_carried_out_once(job: Job) -> None:
    command = job.command()
    program = lincomb("t", (1.0, "w")), dots(("t", "t"))
    first = operate(job, *program, command=command)
    operate(job, lincomb("w", (2.0, "w")), lincomb("t", (5.0, "w")))
    version = job.services[0].controller.require_shard().segments[0].version
    assert operate(job, *program, command=command) == first
    assert job.services[0].controller.require_shard().segments[0].version == version


def test_old_leader_or_shard_epoch_is_refused(job: Job) -> None:
    operate(job, copy("t", "w"), command=job.command(leader_epoch=3))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"command": job.command(leader_epoch=2)}, "leader epoch 2 is over, 3 leads"),
        ({"command": job.command(leader_epoch=3), "target": job.target(1)}, "is in epoch 5, not 6"),
    ]
    for fields, reason in wrong:
        code, details = status(functools.partial(operate, job, copy("t", "w"), **fields))
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED)
        assert details == f"job 'digits', shard 0: {reason}"


def test_a_wrong_program_is_refused_with_its_reason(job: Job) -> None:
    code, details = status(lambda: operate(job, copy("t", "nothing")))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "job 'digits', shard 0: operation 1, copy t nothing: reads 'nothing', which holds nothing"


@settings(max_examples=5)
@given(st.integers(2, 6))
def test_replies_are_kept_for_few_commands(count: int) -> None:
    with patch.object(controller, "REMEMBERED", 3):
        one = controller.ShardController(Metrics("ps"), 1.0, None)
        for number in range(count):
            one.configure(wire.ConfigureRequest(command=wire.Command(leader_epoch=1, id=number + 1)))
        assert len(one._replies) == min(count, 3)


def test_pulls_and_programs_exclude_each_other(job: Job) -> None:
    """A reader sees a segment before a program or after it, never between two operations."""
    job.client(A).push(job.full(-1.0), job.held(0), Push(A, 1, np.float32(1)))
    ended = threading.Event()
    seen: list[np.ndarray] = []

    def read() -> None:
        while not ended.is_set():
            values = job.read("w")
            seen.extend(values[span.start : span.stop] for span in job.placement.spans)

    reader = threading.Thread(target=read)
    reader.start()
    twice = lincomb("w", (2.0, "w"))
    try:
        for number in [0, 1] * 50:
            operate(job, twice, twice, number=number)
    finally:
        ended.set()
        reader.join()
    for segment in seen:
        power = np.log2(segment[0])
        assert (segment == segment[0]).all()
        assert power % 2 == 0, "two doublings or none"
