"""Rounds of DiLoCo, and the fragments of the parameters that are exchanged in them, each after a step of its own.

With one fragment everything is exchanged at the end of a round. With several, their exchanges are spread over the
round, so that a slow link is used all the time (streaming: Douillard et al. 2025, arXiv:2501.18512, section 2.1). A
fragment is a run of whole segments: each of its segments has one push in each round, as without fragments. In the last
round of a lease all fragments are exchanged at its end, so that no step of the lease is left without its effect.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from .layout import Range, SegmentSpan


@dataclass(frozen=True)
class Rounds:
    """The rounds of a lease, in samples of one replica.

    Attributes
    ----------
    batch, steps
        Samples in a mini-batch, and mini-batches in a round.
    fragments
        Number of fragments, at most `steps`.
    """

    batch: int
    steps: int
    fragments: int = 1

    @property
    def samples(self) -> int:
        """Samples in a round."""
        return self.batch * self.steps

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """By fragment, the samples of a round after which it is exchanged: rising, the last at the round's end."""
        return tuple(-(-number * self.steps // self.fragments) * self.batch for number in range(1, self.fragments + 1))

    def due(self, before: int, position: int, total: int) -> Sequence[int]:
        """Fragments that are exchanged after the step from `before` to `position` of a lease of `total` samples."""
        if position == total:
            return range(self.fragments)
        start = before // self.samples * self.samples
        if start + self.samples >= total:
            return ()
        return [number for number, at in enumerate(self.offsets) if before - start < at <= position - start]


class Fragment:
    """A run of whole segments, and the steps since its last push.

    Attributes
    ----------
    range
        Of the job's vector.
    own
        The same in the rank's part, which begins at number `origin`.
    samples, steps
        Since its last push.
    untouched
        Names of the tensors that took part in none of these steps; None: no step yet.
    """

    def __init__(self, range_: Range, origin: int = 0) -> None:
        self.range, self.own = range_, slice(range_[0] - origin, range_[1] - origin)
        self.pushed()

    def stepped(self, samples: int, left_out: Set[str] = frozenset()) -> None:
        """Count a step."""
        self.samples, self.steps = self.samples + samples, self.steps + 1
        self.untouched = left_out if self.untouched is None else self.untouched & left_out

    def pushed(self) -> None:
        """Count from here."""
        self.samples = self.steps = 0
        self.untouched: Set[str] | None = None


def cut(spans: Sequence[SegmentSpan], whole: Range, count: int) -> list[Fragment]:
    """Cut a range of whole segments into `count` fragments of about equal size; fewer where it has fewer segments.

    The result depends on the segment table alone: equal for all replicas.
    """
    edges = [span.stop for span in spans if whole[0] < span.stop < whole[1]]
    count = min(count, len(edges) + 1)
    cuts = [whole[0]]
    for number in range(1, count):
        wanted = whole[0] + (whole[1] - whole[0]) * number / count
        first = next(i for i, edge in enumerate(edges) if edge > cuts[-1])
        allowed = edges[first : len(edges) - (count - 1 - number)]  # at least one segment for each of the others
        cuts.append(min(allowed, key=lambda edge: abs(edge - wanted)))
    return [Fragment(one, whole[0]) for one in zip(cuts, [*cuts[1:], whole[1]], strict=True)]
