"""Rounds of DiLoCo, and the fragments of the parameters that are exchanged in them, each after a step of its own.

With one fragment everything is exchanged at the end of a round. With several, their exchanges are spread over the
round, so that a slow link is used all the time (streaming: Douillard et al. 2025, arXiv:2501.18512, section 2.1). A
fragment is a run of whole segments: each of its segments has one push in each round, as without fragments. In the last
round of a lease all fragments are exchanged at its end, so that no step of the lease is left without its effect.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def cut(spans: Sequence[SegmentSpan], whole: Range, count: int) -> list[Range]:
    """Cut a range of whole segments into `count` fragments of about equal size; fewer where it has fewer segments.

    Each fragment has a segment at least. The result depends on the segment table alone: equal for all replicas.
    """
    edges = [span.stop for span in spans if whole[0] < span.stop < whole[1]]
    count = min(count, len(edges) + 1)
    cuts = [whole[0]]
    for number in range(1, count):
        wanted = whole[0] + (whole[1] - whole[0]) * number / count
        first = next(i for i, edge in enumerate(edges) if edge > cuts[-1])
        allowed = edges[first : len(edges) - (count - 1 - number)]
        cuts.append(min(allowed, key=lambda edge: abs(edge - wanted)))
    return list(zip(cuts, [*cuts[1:], whole[1]], strict=True))
