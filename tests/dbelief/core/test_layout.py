import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import Box, Kind, Layout, assign_segments, make_segments, nominal_length
from dbelief.errors import ModelError
from tests.assembled import assembled


def cut_along(name: str, shape: tuple[int, ...], axis: int, at: int) -> list[Box]:
    """One tensor as two boxes, of ranks 0 and 1, cut at `at` along an axis."""
    start, middle = [0] * len(shape), list(shape)
    middle[axis] = at
    first = Box(name, shape, 0, tuple(start), tuple(middle))
    start[axis] = at
    return [first, Box(name, shape, 1, tuple(start), shape)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One or two ranks; tensors whole on one of them, or cut along an axis; scalars and empty tensors too."""
    ranks = draw(st.integers(1, 2))
    boxes: list[Box] = [Box("first", (2,), 0, (0,), (2,))]
    for number in range(draw(st.integers(0, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        name = f"t{number}"
        if ranks == 2 and shape and draw(st.booleans()):
            axis = draw(st.integers(0, len(shape) - 1))
            boxes += cut_along(name, shape, axis, draw(st.integers(0, shape[axis])))
        else:
            boxes.append(Box(name, shape, draw(st.integers(0, ranks - 1)), (0,) * len(shape), shape))
    return Layout(tuple(sorted(boxes, key=lambda box: box.rank)))


@st.composite
def layouts_of_kinds(draw: st.DrawFn) -> Layout:
    """The same, with a kind for each box; kinds ascend within a rank."""
    kinds = st.sampled_from(Kind)
    boxes = [replace(box, kind=draw(kinds)) for box in draw(layouts()).boxes]
    return Layout(tuple(sorted(boxes, key=lambda box: (box.rank, box.kind))))


@given(layouts())
def test_assemble_and_flatten_undo_each_other(layout: Layout) -> None:
    flat = np.arange(layout.size, dtype=np.float32)
    tensors = assembled(layout, flat)
    np.testing.assert_array_equal(layout.flatten(tensors, np.empty_like(flat)), flat)
    for box in layout.boxes:
        assert tensors[box.name].shape == box.shape
        np.testing.assert_array_equal(tensors[box.name][box.index], layout.views(flat, box.rank)[box.name])


@given(layouts())
def test_a_ranks_part_is_a_vector_of_its_own(layout: Layout) -> None:
    flat = np.arange(layout.size, dtype=np.float32)
    tensors = assembled(layout, flat)
    parts = [layout.part(rank) for rank in range(3)]
    assert [(part.start, part.stop) for part in parts[: len(layout.rank_ranges())]] == layout.rank_ranges()
    assert sum(part.size for part in parts) == layout.size, "a third rank has nothing"
    for rank, part in enumerate(parts):
        own = part.flatten(tensors, np.empty(part.size, np.float32))
        np.testing.assert_array_equal(own, flat[part.start : part.stop])
        views, same = part.views(own), layout.views(flat, rank)
        assert views.keys() == same.keys()
        for name, view in views.items():
            np.testing.assert_array_equal(view, same[name])
        for position in range(part.size):
            assert part.tensor_at(position) == layout.tensor_at(part.start + position)
        with pytest.raises(ValueError, match="outside a vector"):
            part.tensor_at(part.size)


def test_flatten_takes_tensors_in_any_memory_order() -> None:
    tensor = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    layout = Layout.of({"w": tensor})
    np.testing.assert_array_equal(layout.flatten({"w": tensor}, np.empty(6, np.float32)), np.arange(6))


def test_a_rank_without_parameters_has_an_empty_range() -> None:
    layout = Layout((Box("a", (3,), 0, (0,), (3,)), Box("b", (2,), 2, (0,), (2,))))
    assert layout.rank_ranges() == [(0, 3), (3, 3), (3, 5)]
    assert layout.views(np.zeros(5), 1) == {}


def test_tensor_aliases_are_in_rows_and_digest() -> None:
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    plain, tied = Layout.of(tensors), Layout.of(tensors, {"a": ["c", "d"]})
    assert [box.names for box in tied.boxes] == [("a", "c", "d"), ("b",)]
    assert tied.digest() != plain.digest()
    assert Layout.from_rows(json.loads(json.dumps(tied.rows()))) == tied
    assert Layout.from_rows(json.loads(json.dumps(plain.rows()))) == plain
    with pytest.raises(ModelError, match="layout: two tensors are called 'b'"):
        Layout.of(tensors, {"a": ["b"]})


def test_the_digest_knows_names_shapes_order_and_boxes() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros(6, np.float32)
    layouts = [
        Layout.of({"a": a, "b": b}),
        Layout.of({"b": b, "a": a}),
        Layout.of({"a": a, "c": b}),
        Layout.of({"a": a.T, "b": b}),
        Layout((*cut_along("a", (2, 3), 0, 1), Box("b", (6,), 1, (0,), (6,)))),
    ]
    assert len({layout.digest() for layout in layouts}) == len(layouts)
    assert layouts[0].digest() == Layout.of({"a": a + 1, "b": b}).digest()
    assert len(layouts[0].digest()) == 64


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([], "no parameters"),
        ([Box("w", (0, 3), 0, (0, 0), (0, 3))], "no parameters"),
        ([Box("a", (2,), 1, (0,), (2,)), Box("b", (2,), 0, (0,), (2,))], "nor fall along the vector"),
        ([Box("a", (2,), -1, (0,), (2,))], "must not be negative"),
        ([Box("a", (2,), 0, (0,), (3,))], r"does not fit tensor 'a' \(2,\)"),
        ([Box("a", (2,), 0, (-1,), (1,))], "does not fit tensor 'a'"),
        ([Box("a", (2,), 0, (2,), (1,))], "does not fit tensor 'a'"),
        ([Box("a", (2, 1), 0, (0,), (2,))], "does not fit tensor 'a'"),
        ([Box("a", (2,), 0, (0, 0), (2,))], "does not fit tensor 'a'"),
        ([Box("a", (2,), 0, (0,), (1,)), Box("a", (3,), 1, (1,), (2,))], "does not fit tensor 'a'"),
        ([Box("a", (4,), 0, (0,), (2,))], "the boxes of 'a' hold 2 numbers, the tensor 4"),
        ([Box("a", (4,), 0, (0,), (2,)), Box("a", (4,), 0, (2,), (4,))], "rank 0 holds two boxes of 'a'"),
        ([Box("a", (4,), 0, (0,), (2,)), Box("a", (4,), 1, (1,), (3,))], "ranks 0 and 1 hold the same part of 'a'"),
    ],
)
def test_a_bad_layout_is_refused(boxes: list[Box], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        Layout(tuple(boxes))


@given(
    parts=st.lists(st.integers(0, 5_000), min_size=1, max_size=4),
    nominal=st.integers(1, 700),
)
def test_segments_are_a_partition_that_no_part_shares(parts: list[int], nominal: int) -> None:
    edges = np.cumsum([0, *parts]).tolist()
    ranges = list(itertools.pairwise(edges))
    spans = make_segments(ranges, nominal)
    assert [span.index for span in spans] == list(range(len(spans)))
    numbers = [number for span in spans for number in range(span.start, span.stop)]
    assert numbers == list(range(edges[-1]))
    for span in spans:
        assert 1 <= span.length <= nominal
        assert sum(start <= span.start and span.stop <= stop for start, stop in ranges) == 1
    short = [span for span in spans if span.length < nominal]
    assert len(short) <= len(parts)


@pytest.mark.parametrize(
    ("size", "shards", "length"),
    [
        (1, 1, 1_024),
        (3 * 1_024, 1, 1_024),
        (3 * 1_024 + 1, 1, 1_025),
        (3 * 2 * 1_024 + 1, 2, 1_025),
        (3 * 98_304 + 1, 1, 98_304),
        (203_530, 1, 67_844),
        (203_530, 2, 33_922),
        (8 * 98_305 - 1, 1, 98_304),
        (8 * 98_305, 1, 98_305),
        (8 * 2 * 140_000, 2, 140_000),
        (8 * 262_144 - 1, 1, 262_143),
        (8 * 262_144, 1, 262_144),
        (10**12, 256, 262_144),
    ],
)
def test_the_nominal_length_at_its_edges(size: int, shards: int, length: int) -> None:
    assert nominal_length(size, shards) == length


@given(lengths=st.lists(st.integers(1, 1_000), max_size=60), shards=st.integers(1, 10))
def test_placement_is_complete_contiguous_and_balanced(lengths: list[int], shards: int) -> None:
    edges = np.cumsum([0, *lengths]).tolist()
    spans = make_segments(itertools.pairwise(edges), 1_000)
    runs = assign_segments(spans, shards)
    assert len(runs) == shards
    assert [index for first, count in runs for index in range(first, first + count)] == list(range(len(spans)))
    if spans:
        share, longest = edges[-1] / shards, max(lengths)
        for first, count in runs:
            assert abs(sum(span.length for span in spans[first : first + count]) - share) < longest + 1e-6


@given(layouts(), st.integers(1, 10))
def test_the_whole_way_from_layout_to_shards(layout: Layout, shards: int) -> None:
    spans = make_segments(layout.rank_ranges(), nominal_length(layout.size, shards))
    assert sum(span.length for span in spans) == layout.size
    parts = layout.rank_ranges()
    assert all(any(a <= span.start and span.stop <= b for a, b in parts) for span in spans)
    assert sum(count for _, count in assign_segments(spans, shards)) == len(spans)


# -- kinds and types -----------------------------------------------------------------------------------------

NORM: dict[str, np.ndarray] = {
    "weight": np.zeros((2, 3), np.float32),
    "bias": np.zeros(3, np.float32),
    "mean": np.zeros(3, np.float32),
    "seen": np.zeros((), np.int64),
    "frozen": np.zeros(4, np.float16),
}
KINDS = {"mean": Kind.SUMMED, "seen": Kind.SUMMED, "frozen": Kind.FIXED}
DTYPES = {"seen": "int64", "frozen": "float16"}


def test_kinds_and_types_are_given_by_name() -> None:
    layout = Layout.of(NORM, {"weight": ["tied"]}, KINDS, DTYPES)
    trained, summed, fixed = Kind.TRAINED, Kind.SUMMED, Kind.FIXED
    assert [(box.name, box.kind, box.dtype) for box in layout.boxes] == [
        ("weight", trained, "float32"),
        ("bias", trained, "float32"),
        ("mean", summed, "float32"),
        ("seen", summed, "int64"),
        ("frozen", fixed, "float16"),
    ]
    assert layout.boxes[0].names == ("weight", "tied")
    assert {(box.kind, box.dtype) for box in Layout.of(NORM).boxes} == {(trained, "float32")}


@pytest.mark.parametrize(
    "kinds",
    [
        {"weight": Kind.SUMMED},
        {"weight": Kind.FIXED},
        {"bias": Kind.FIXED, "mean": Kind.SUMMED},
        {"seen": Kind.SUMMED},
    ],
    ids=str,
)
def test_kinds_ascend_within_a_rank(kinds: dict[str, Kind]) -> None:
    with pytest.raises(ModelError, match="in a rank trained tensors come first, then summed ones, then fixed ones"):
        Layout.of(NORM, kinds=kinds)


@given(layout=layouts_of_kinds(), nominal=st.integers(1, 40))
def test_no_segment_spans_two_kinds_or_ranks(layout: Layout, nominal: int) -> None:
    spans = layout.segments(nominal)
    assert [span.index for span in spans] == list(range(len(spans)))
    assert all(1 <= span.length <= nominal for span in spans)
    numbers = [(number, span.kind) for span in spans for number in range(span.start, span.stop)]
    held = [box.kind for box in layout.boxes for _ in range(box.size)]
    assert numbers == list(enumerate(held)), "each number once, in order, with the kind of its tensor"
    ranges = layout.rank_ranges()
    assert all(any(start <= span.start and span.stop <= stop for start, stop in ranges) for span in spans)
    short = [span for span in spans if span.length < nominal]
    assert len(short) <= len({(box.rank, box.kind) for box in layout.boxes}), "one for each kind of a rank"


def test_segments_of_trained_tensors_are_those_of_the_ranks() -> None:
    layout = Layout((*cut_along("w", (9, 3), 0, 4), Box("b", (5,), 1, (0,), (5,))))
    assert layout.segments(7) == make_segments(layout.rank_ranges(), 7)


@pytest.mark.parametrize(
    ("kinds", "stop"),
    [
        ({}, 17),
        ({"frozen": Kind.FIXED}, 13),
        (KINDS, 13),
        ({"mean": Kind.FIXED, "seen": Kind.FIXED, "frozen": Kind.FIXED}, 9),
        (dict.fromkeys(NORM, Kind.FIXED), 0),
        (dict.fromkeys(NORM, Kind.SUMMED), 17),
    ],
)
def test_pushed_is_all_but_what_is_fixed(kinds: dict[str, Kind], stop: int) -> None:
    layout = Layout.of(NORM, kinds=kinds)
    assert layout.pushed == (0, stop)
    assert sum(span.length for span in layout.segments(2) if span.kind is not Kind.FIXED) == stop


@given(layout=layouts_of_kinds(), data=st.data())
def test_rows_with_kinds_and_types_are_read_back(layout: Layout, data: st.DataObject) -> None:
    types = st.sampled_from(["float32", "float16", "bfloat16", "int64", "bool"])
    boxes = tuple(replace(box, dtype=data.draw(types)) for box in layout.boxes)
    again = Layout.from_rows(json.loads(json.dumps(Layout(boxes).rows())))
    assert again.boxes == boxes
    assert all(isinstance(box.kind, Kind) for box in again.boxes)


def test_digest_without_kinds_is_that_of_earlier_versions() -> None:
    """Literals of the version before kinds: jobs that it has stored are resumed."""
    tied = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}, {"w": ["tied"]})
    assert tied.digest() == "380111e3202c80b2b7b378d25b20e573e4c17cb71a806ef93201eceb35b712a8"
    cut = Layout((*cut_along("w", (4, 6), 1, 2), Box("b", (6,), 1, (0,), (6,))))
    assert cut.digest() == "9d1c58382f758be8a39488cbb7f58128d444fd0ec42cc5c6051962f39f495da1"


def test_digest_knows_kinds_and_types() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"kinds": KINDS},
        {"kinds": {**KINDS, "mean": Kind.TRAINED}},
        {"dtypes": DTYPES},
        {"dtypes": {**DTYPES, "frozen": "bfloat16"}},
        {"kinds": KINDS, "dtypes": DTYPES},
    ]
    assert len({Layout.of(NORM, **fields).digest() for fields in variants}) == len(variants)


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (["a", "b"], ["a"], "tensor 'b' is (2,) here, and missing there"),
        (["a"], ["a", "b"], "tensor 'b' is missing here, and (2,) there"),
        (["a", "b"], ["b", "a"], "the tensors have another order"),
    ],
)
def test_difference_names_the_first_tensor(here: list[str], there: list[str], text: str) -> None:
    mine, theirs = (Layout.of({name: np.zeros(2, np.float32) for name in names}) for names in (here, there))
    assert mine.difference(theirs) == text


@pytest.mark.parametrize("other", [{"kinds": KINDS}, {"dtypes": DTYPES}, {"also": {"frozen": ["tied"]}}], ids=str)
def test_difference_of_one_property_names_its_tensor(other: dict[str, Any]) -> None:
    name = next(name for name in NORM if any(name in names for names in other.values()))
    text = f"tensor {name!r} has another place, type or kind"
    assert Layout.of(NORM).difference(Layout.of(NORM, **other)) == text
    reshaped = Layout.of({**NORM, "weight": np.zeros((3, 2), np.float32)}, **other)
    assert Layout.of(NORM).difference(reshaped) == "tensor 'weight' is (2, 3) here, and (3, 2) there", "shapes first"
