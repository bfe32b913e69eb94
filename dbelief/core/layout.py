"""Position of each tensor, or of a rank's box of it, in the flat vector of a model.

The vector concatenates the ranks' ranges; a rank's range concatenates its boxes, each C-contiguous. A model on one rank
is therefore its tensors in order, and every view is a reshaped slice: no copy anywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dbelief.errors import ModelError

from .whole_numbers import whole_type

Range = tuple[int, int]
"""First number of a flat vector, and one past the last."""

FROZEN = "frozen "
"""Start of a digest of fixed tensors; else it is that of a model's source."""

MAX_SEGMENT_LENGTH = 262_144
"""Numbers in the longest segment of a job."""
SMALL_SEGMENT_LENGTH = 98_304
"""Numbers that Adagrad updates in some 25 µs, no more than a segment costs beside its numbers, at both ends. Fewer than
those that are copied past the caches (`streaming_copy`)."""
MIN_SEGMENT_LENGTH = 1_024
"""Numbers in a full segment at least, however small the model."""


class Kind(IntEnum):
    """What pushes do to the numbers of a tensor."""

    TRAINED = 0
    """The job's rule is applied to gradients."""
    SUMMED = 1
    """Differences are added, such as those of the running statistics of BatchNorm."""
    FIXED = 2
    """They are assigned once, and not pushed: frozen parameters."""
    TABLE = 3
    """Rows by key, in a bucket of a table: they have no place in the flat vector."""


@dataclass(frozen=True)
class Box:
    """A box of one tensor, held by one rank.

    Attributes
    ----------
    name, shape
        The complete tensor's name and shape.
    rank
        The rank that holds this box.
    start, stop
        Per axis, the half-open range of the box within the tensor.
    also
        Further names of the complete tensor, under which a model file holds it again.
    kind
        What pushes do to it.
    dtype
        Its type in a model file, as NumPy calls it, or bfloat16; shards hold float32. Of whole numbers in parts: see
        `whole_numbers`; the tensor has one more axis here than in the file.
    """

    name: str
    shape: tuple[int, ...]
    rank: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    also: tuple[str, ...] = ()
    kind: Kind = Kind.TRAINED
    dtype: str = "float32"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the complete tensor."""
        return self.name, *self.also

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Shape of the box itself."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the complete tensor in a model file."""
        return self.shape if whole_type(self.dtype) is None else self.shape[:-1]

    @property
    def size(self) -> int:
        """Number of elements of the box."""
        return math.prod(self.box_shape)

    @property
    def fits(self) -> bool:
        """Whether the box lies within its tensor."""
        return len(self.start) == len(self.stop) == len(self.shape) and all(
            0 <= a <= b <= n for a, b, n in zip(self.start, self.stop, self.shape, strict=True)
        )

    def overlaps(self, other: Box) -> bool:
        """Whether two boxes of one tensor share an element."""
        ranges = zip(self.start, self.stop, other.start, other.stop, strict=True)
        return all(max(a, c) < min(b, d) for a, b, c, d in ranges)

    @property
    def index(self) -> tuple[slice, ...]:
        """The box as an index into the complete tensor."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True)
class RankPart:
    """The range of one rank, as a vector of its own: its boxes concatenated.

    Attributes
    ----------
    start
        Position of its first number in the flat vector of all ranks.
    """

    boxes: tuple[Box, ...]
    start: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First number of each box in this vector."""
        return tuple(accumulate((box.size for box in self.boxes[:-1]), initial=0)) if self.boxes else ()

    @cached_property
    def size(self) -> int:
        """Number of elements that the rank holds; 0 where there are more ranks than parts of the model."""
        return sum(box.size for box in self.boxes)

    @property
    def stop(self) -> int:
        """One past the last number, in the flat vector of all ranks."""
        return self.start + self.size

    def views(self, flat: Any) -> dict[str, Any]:
        """The boxes by tensor name, as views of (size,) `flat` of any array module."""
        return {
            box.name: flat[start : start + box.size].reshape(box.box_shape)
            for box, start in zip(self.boxes, self.starts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, np.ndarray], out: np.ndarray) -> np.ndarray:
        """Write the rank's boxes of complete tensors into (size,) `out`."""
        for box, start in zip(self.boxes, self.starts, strict=True):
            out[start : start + box.size] = np.asarray(tensors[box.name])[box.index].reshape(-1)
        return out

    def collect(self, pieces: Iterable[tuple[str, int, np.ndarray]], out: np.ndarray) -> np.ndarray:
        """Copy the rank's boxes from slices of tensors, (name, first row, rows) each, into (size,) `out`."""
        views = self.views(out)
        held = {box.name: box for box in self.boxes}
        for name, first, rows in pieces:
            box = held.get(name)
            if box is None:
                continue
            if not box.shape:
                views[name][...] = rows
                continue
            start, stop = max(box.start[0], first), min(box.stop[0], first + len(rows))
            if start < stop:
                index = (slice(start - first, stop - first), *box.index[1:])
                views[name][start - box.start[0] : stop - box.start[0]] = rows[index]
        return out

    def pieces(self, flat: Any, own: slice) -> Iterator[tuple[str, Any]]:
        """What a range of (size,) `flat` holds of each box in it, by tensor name, as flat views; at least a number."""
        first = bisect_right(self.starts, own.start) - 1
        last = bisect_left(self.starts, own.stop)
        for box, start in zip(self.boxes[first:last], self.starts[first:last], strict=True):
            some = flat[max(start, own.start) : min(start + box.size, own.stop)]
            if some.size:
                yield box.name, some

    def tensor_at(self, position: int) -> str:
        """Name of the tensor that contains number `position` of this vector."""
        for box, start in zip(self.boxes, self.starts, strict=True):
            if start <= position < start + box.size:
                return box.name
        raise ValueError(f"position {position} is outside a vector of {self.size}")


def _check_tensor(boxes: Sequence[Box]) -> None:
    """Raise ModelError unless the boxes of one tensor are a partition of it, one box for each rank."""
    name, shape = boxes[0].name, boxes[0].shape
    for number, box in enumerate(boxes):
        if not box.fits or box.shape != shape:
            raise ModelError(f"layout: box {box.start}..{box.stop} does not fit tensor {name!r} {shape}")
        for other in boxes[:number]:
            if other.rank == box.rank:
                raise ModelError(f"layout: rank {box.rank} holds two boxes of {name!r}")
            if other.overlaps(box):
                raise ModelError(f"layout: ranks {other.rank} and {box.rank} hold the same part of {name!r}")
    size, whole = sum(box.size for box in boxes), math.prod(shape)
    if size != whole:
        raise ModelError(f"layout: the boxes of {name!r} hold {size} numbers, the tensor {whole}")


@dataclass(frozen=True)
class Layout:
    """The boxes of a model in the order of the flat vector: ranks ascending, and in a rank kinds.

    Raises
    ------
    ModelError
        Ranks or kinds are out of order, a box exceeds its tensor, a tensor's boxes overlap or do not cover it, a rank
        holds two boxes of one tensor, or two tensors have one name.
    """

    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        tensors: dict[str, list[Box]] = {}
        for box in self.boxes:
            tensors.setdefault(box.name, []).append(box)
        for boxes in tensors.values():
            _check_tensor(boxes)
        names = Counter(name for boxes in tensors.values() for name in boxes[0].names)
        if len(names) < names.total():
            raise ModelError(f"layout: two tensors are called {names.most_common(1)[0][0]!r}")
        if not self.size:
            raise ModelError("the model has no parameters")
        ranks = [box.rank for box in self.boxes]
        if ranks != sorted(ranks) or ranks[0] < 0:
            raise ModelError(f"layout: ranks must not be negative nor fall along the vector, got {ranks}")
        order = [(box.rank, box.kind) for box in self.boxes]
        if order != sorted(order):
            raise ModelError("layout: in a rank trained tensors come first, then summed ones, then fixed ones")

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, np.ndarray],
        also: Mapping[str, Sequence[str]] | None = None,
        kinds: Mapping[str, Kind] | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> Layout:
        """Layout of a model on one rank: complete tensors, in the mapping's order, which has kinds ascending.

        `also`: further names of some; `kinds`, `dtypes`: of those that are not trained, or no float32 in a model file.
        """
        layout = cls.whole({name: tuple(array.shape) for name, array in parameters.items()})
        return cls(
            tuple(
                replace(
                    box,
                    also=tuple((also or {}).get(box.name, ())),
                    kind=(kinds or {}).get(box.name, Kind.TRAINED),
                    dtype=(dtypes or {}).get(box.name, "float32"),
                )
                for box in layout.boxes
            )
        )

    @classmethod
    def whole(cls, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """Layout of a model on one rank whose tensors have these shapes."""
        return cls(tuple(Box(name, shape, 0, (0,) * len(shape), shape) for name, shape in shapes.items()))

    @cached_property
    def _all(self) -> RankPart:
        """All ranks' boxes as one range."""
        return RankPart(self.boxes, 0)

    @property
    def starts(self) -> tuple[int, ...]:
        """First number of each box in the flat vector."""
        return self._all.starts

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self._all.size

    def rank_ranges(self) -> list[tuple[int, int]]:
        """Half-open range of the flat vector that each rank holds, by rank."""
        ranges: list[tuple[int, int]] = []
        for box, start in zip(self.boxes, self.starts, strict=True):
            while len(ranges) <= box.rank:
                ranges.append((start, start))
            ranges[box.rank] = (ranges[box.rank][0], start + box.size)
        return ranges

    def segments(self, nominal: int) -> list[SegmentSpan]:
        """The segment table, with segments of `nominal` numbers: none spans two ranks or two kinds."""
        ranges: list[tuple[int, int, Kind]] = []
        before = None
        for box, start in zip(self.boxes, self.starts, strict=True):
            if (box.rank, box.kind) != before:
                ranges.append((start, start, box.kind))
            ranges[-1] = (ranges[-1][0], start + box.size, box.kind)
            before = box.rank, box.kind
        return _segments(ranges, nominal)

    @property
    def pushed(self) -> Range:
        """Range of the flat vector that a replica of one rank fetches and pushes: all but what is fixed."""
        return 0, sum(box.size for box in self.boxes if box.kind is not Kind.FIXED)

    def part(self, rank: int) -> RankPart:
        """The range of one rank."""
        ranges = self.rank_ranges()
        start = ranges[rank][0] if rank < len(ranges) else self.size
        return RankPart(tuple(box for box in self.boxes if box.rank == rank), start)

    def views(self, flat: Any, rank: int = 0) -> dict[str, Any]:
        """The boxes of one rank by tensor name, as views of `flat` (the complete vector, any array module)."""
        part = self.part(rank)
        return part.views(flat[part.start : part.stop])

    def flatten(self, tensors: Mapping[str, np.ndarray], out: np.ndarray) -> np.ndarray:
        """Write complete tensors into the flat vector `out`."""
        return self._all.flatten(tensors, out)

    def tensor_at(self, position: int) -> str:
        """Name of the tensor that contains number `position` of the flat vector."""
        return self._all.tensor_at(position)

    def digest(self) -> str:
        """Hash for the comparison of layouts between replicas, 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.rows()).encode()).hexdigest()

    def difference(self, other: Layout) -> str:
        """The first tensor in which two layouts differ, in words."""
        mine, theirs = ({box.name: box for box in layout.boxes} for layout in (self, other))
        for name in [*mine, *theirs]:
            if name not in theirs:
                return f"tensor {name!r} is {mine[name].shape} here, and missing there"
            if name not in mine:
                return f"tensor {name!r} is missing here, and {theirs[name].shape} there"
            if mine[name].shape != theirs[name].shape:
                return f"tensor {name!r} is {mine[name].shape} here, and {theirs[name].shape} there"
        odd = [name for name, box in mine.items() if box != theirs[name]]
        return f"tensor {odd[0]!r} has another place, type or kind" if odd else "the tensors have another order"

    def rows(self) -> list[list[Any]]:
        """The boxes as plain values for JSON; `from_rows` reads them."""
        return [[b.name, b.shape, b.rank, b.start, b.stop, *_rest(b)] for b in self.boxes]

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> Layout:
        """Layout from the result of `rows`."""
        return cls(tuple(_box(*row) for row in rows))


def _rest(box: Box) -> list[Any]:
    """Fields that rows had not from the beginning; none where all have their defaults, so that digests stay."""
    if box.kind is Kind.TRAINED and box.dtype == "float32":
        return [box.also] if box.also else []
    return [box.also, int(box.kind), box.dtype]


def _box(
    name: str,
    shape: Sequence[int],
    rank: int,
    start: Sequence[int],
    stop: Sequence[int],
    also: Sequence[str] = (),
    kind: int = 0,
    dtype: str = "float32",
) -> Box:
    return Box(name, tuple(shape), rank, tuple(start), tuple(stop), tuple(also), Kind(kind), dtype)


@dataclass(frozen=True)
class SegmentSpan:
    """A row of the segment table: a contiguous range of the flat vector, of one kind."""

    index: int
    start: int
    length: int
    kind: Kind = Kind.TRAINED

    @cached_property
    def by_key(self) -> bool:
        """Whether it is a bucket of a table."""
        return self.kind is Kind.TABLE

    @cached_property
    def stop(self) -> int:
        """One past the last number."""
        return self.start + self.length


def nominal_length(size: int, shards: int) -> int:
    """Numbers of a full segment, where a model of `size` numbers begins on so many shards.

    A push costs a fixed time for each segment, beside the time for its numbers. So a shard has eight segments where
    they are not small, and else fewer, but at least three, which other shards can take over later. A large model's
    segment is one message of 1 MiB.
    """
    small = min(SMALL_SEGMENT_LENGTH, -(-size // (3 * shards)))
    return min(MAX_SEGMENT_LENGTH, max(MIN_SEGMENT_LENGTH, small, size // (8 * shards)))


def make_segments(ranges: Iterable[tuple[int, int]], nominal: int) -> list[SegmentSpan]:
    """Split ranges of trained numbers into segments of `nominal` numbers; no segment spans two ranges."""
    return _segments(((start, stop, Kind.TRAINED) for start, stop in ranges), nominal)


def _segments(ranges: Iterable[tuple[int, int, Kind]], nominal: int) -> list[SegmentSpan]:
    spans: list[SegmentSpan] = []
    for start, stop, kind in ranges:
        for first in range(start, stop, nominal):
            spans.append(SegmentSpan(len(spans), first, min(nominal, stop - first), kind))
    return spans


def assign_segments(spans: Sequence[SegmentSpan], shards: int) -> list[tuple[int, int]]:
    """Assign a contiguous run of segments to every shard, as (first index, count); a run may be empty.

    A segment is assigned to the shard whose equal share of the numbers contains the segment's middle: the runs differ
    from equal shares by less than one segment, and every segment is assigned exactly once.
    """
    total = sum(span.length for span in spans)
    runs = [[0, 0] for _ in range(shards)]
    position = 0
    for span in spans:
        shard = min(shards - 1, (2 * position + span.length) * shards // (2 * total))
        if runs[shard][1] == 0:
            runs[shard][0] = span.index
        runs[shard][1] += 1
        position += span.length
    return [(first, count) for first, count in runs]
