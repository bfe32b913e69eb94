"""Programs over the named vectors of a shard, segment by segment, on all cores.

A program runs on one segment to its end before a thread starts the next, so that data shared by its operations stays in
the cache. Segments are distributed over as many threads as there are cores, because the loops release the interpreter
lock. Numbers are computed in float64 and stored as the vector's type. Cost: memory traffic of the vectors named, one
temporary of a segment's length in float64 per thread where more than two terms are combined.

Source: DistBelief section 4.2 and appendix; `dbelief.core.vector_program` describes each operation.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence

import numpy as np

from dbelief.arrays.vector_kernels import compiled
from dbelief.core.absent import Ranges, pairs, present, within
from dbelief.core.vector_program import Operation, together, validate
from dbelief.errors import Rejected

from .store.admission import DTYPES, MOST_VECTORS, check_limit
from .store.concurrency import ThreadPool
from .store.journal import ProgramRecord
from .store.segment import Segment
from .store.shard import Shard


class ProgramExecutor:
    """Executor of programs on one shard; runs one at a time."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._threads = ThreadPool()

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    def run(self, program: Sequence[Operation]) -> list[float]:
        """Run a program, all or nothing; returns this shard's scalars, in order, reduced over rising segments.

        Raises
        ------
        Rejected
            The program is invalid, reads an incomplete vector, or needs more memory than is available; nothing has
            changed.
        """
        segments = [segment for _, segment in sorted(self._shard.segments.items())]
        validate(program, self._held(program, segments))
        self._make_room(program, segments)
        total = len(program) * sum(segment.nbytes for segment in segments)
        parts = self._threads.map(functools.partial(_run, program), segments, total)
        return together(program, parts)

    @staticmethod
    def _held(program: Sequence[Operation], segments: list[Segment]) -> set[str]:
        """Named vectors that are complete in all segments; without segments, every vector counts as complete."""
        named = {name for operation in program for name in operation.vectors}
        return {name for name in named if all(segment.holds(name) for segment in segments)}

    @staticmethod
    def _make_room(program: Sequence[Operation], segments: list[Segment]) -> None:
        """Allocate vectors that are written for the first time; none is readable before it is written."""
        written = {name for operation in program for name in operation.writes}
        for segment in segments[:1]:  # all segments hold the same vectors
            held = set(segment.vectors)
            for name in sorted(written):
                check_limit("named vectors", name, held, MOST_VECTORS)
                held.add(name)
        try:
            made = [
                (segment, name, np.empty(segment.span.length, DTYPES.get(name, np.float32)))
                for segment in segments
                for name in sorted(written - segment.vectors.keys())
            ]
        except MemoryError:
            raise Rejected(f"there is no memory for {', '.join(sorted(written))}") from None
        for segment, name, values in made:
            with segment.lock:
                segment.vectors.setdefault(name, values)


def _run(program: Sequence[Operation], segment: Segment) -> list[float]:
    with segment.lock:
        version = segment.version
        answers = run(program, segment)
        segment.append_journal(lambda: ProgramRecord(segment.span.index, version, program))
    return answers


def run(program: Sequence[Operation], segment: Segment) -> list[float]:
    """Run a program on one segment, and return its scalars; the segment's lock is held."""
    answers: list[float] = []
    for operation in program:
        for name in set(operation.writes) - segment.vectors.keys():  # a follower makes room only here
            segment.vectors[name] = np.empty(segment.span.length, DTYPES.get(name, np.float32))
        arrays = [segment.vectors[name] for name in operation.vectors]
        segment.before_write(*(segment.vectors[name] for name in operation.writes))
        exempt = within(operation.exempt, segment.span.start, segment.span.stop)
        answers += _LOOPS[operation.name](arrays, operation.scalars, exempt)
        segment.mark_written(operation.writes)
    return answers


# -- operations on one segment -------------------------------------------------------------------------------


def _lincomb(arrays: list[np.ndarray], factors: Sequence[float], exempt: Ranges = ()) -> list[float]:
    target, *terms = arrays
    if len(terms) == 1:
        compiled("one")(target, factors[0], terms[0])
    elif len(terms) == 2:
        compiled("two")(target, factors[0], terms[0], factors[1], terms[1])
    else:
        total = np.zeros(len(target))
        pairs = list(zip(factors, terms, strict=True))
        fours = len(pairs) // 4 * 4  # four terms at a time: a quarter of the loads and stores of the total
        for first in range(0, fours, 4):
            compiled("four")(total, *itertools.chain(*pairs[first : first + 4]))
        for factor, term in pairs[fours:]:
            compiled("two")(total, 1.0, total, factor, term)
        target[:] = total
    return []


def _dots(arrays: list[np.ndarray], factors: Sequence[float], exempt: Ranges) -> list[float]:
    return [compiled("dot")(a, b) for a, b in zip(arrays[::2], arrays[1::2], strict=True)]


def _norm1(arrays: list[np.ndarray], factors: Sequence[float], exempt: Ranges) -> list[float]:
    parts = [compiled("norm1")(arrays[0][part]) for part in present(exempt, 0, len(arrays[0]))]
    return [functools.reduce(operator.add, parts, 0.0)]


def _pseudo(arrays: list[np.ndarray], factors: Sequence[float], exempt: Ranges) -> list[float]:
    target, _, gradient = arrays
    for start, stop in pairs(exempt):
        compiled("one")(target[start:stop], 1.0, gradient[start:stop])
    return _penalised("pseudo", arrays, factors, exempt)


def _penalised(name: str, arrays: list[np.ndarray], factors: Sequence[float], exempt: Ranges) -> list[float]:
    """Run a loop on what is not exempt."""
    for part in present(exempt, 0, len(arrays[0])):
        compiled(name)(*(array[part] for array in arrays), *factors)
    return []


_LOOPS: dict[str, Callable[[list[np.ndarray], Sequence[float], Ranges], list[float]]] = {
    "copy": lambda v, c, exempt: _lincomb(v, (1.0,)),
    "lincomb": _lincomb,
    "dots": _dots,
    "norm1": _norm1,
    "pseudo": _pseudo,
    "opposed": functools.partial(_penalised, "opposed"),
    "orthant": functools.partial(_penalised, "orthant"),
}
"""Each gets a segment's slices of the vectors, the factors, and the exempt ranges within the segment."""
