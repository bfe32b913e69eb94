"""Rounds of DiLoCo, and the fragments of the parameters that are exchanged in them, each after a step of its own.

With one fragment everything is exchanged at the end of a round. With several, their exchanges are spread over the
round, so that a slow link is used all the time (streaming: Douillard et al. 2025, arXiv:2501.18512, section 2.1). A
fragment is a number of whole segments: each has one push in each round, as without fragments. In the last round of a
lease all fragments are exchanged at its end, so that no step of the lease is left without its effect.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from .absent import joined
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


class RoundClock:
    """Clocks of a replica's rounds: those of its leases, or later ones where rounds have ended without it.

    Attributes
    ----------
    next
        With a quorum: the earliest clock of its next round; else 0.
    """

    def __init__(self) -> None:
        self.next = 0

    def of(self, leased: int) -> int:
        """Clock of the round that has the clock `leased` in its lease."""
        return max(leased, self.next)

    def answered(self, clock: int, open_round: int) -> bool:
        """Record the answers to a round's pushes; whether the replica leaves out rounds, which it has to report.

        `open_round`: the latest one at the shards, with a quorum; else 0.
        """
        if open_round:
            self.next = max(self.next, clock + 1, open_round)
        return open_round > clock + 1


class Fragment:
    """Some segments of a rank's part, and the steps since their last push.

    Attributes
    ----------
    pieces
        Ranges of the rank's part: rising, no two of them touch.
    within
        Indices of its segments; None where these are all of the part.
    samples, steps
        Since its last push.
    untouched
        Names of the tensors that took part in none of these steps; None: no step yet.
    """

    def __init__(self, pieces: Sequence[slice], within: frozenset[int] | None = None) -> None:
        self.pieces, self.within = pieces, within
        self.samples = self.steps = 0
        self.untouched: Set[str] | None = None

    def stepped(self, samples: int, left_out: Set[str] = frozenset()) -> None:
        """Count a step."""
        self.samples, self.steps = self.samples + samples, self.steps + 1
        self.untouched = left_out if self.untouched is None else self.untouched & left_out

    def pushed(self) -> None:
        """Count from here."""
        self.samples, self.steps, self.untouched = 0, 0, None


def cut(spans: Sequence[SegmentSpan], whole: Range, count: int) -> list[Fragment]:
    """Cut the segments of a rank's part into `count` fragments; fewer where it has fewer segments.

    Segments are dealt in turn, so that each fragment has some at every shard: no shard's link has to carry a fragment
    alone. The result depends on the segment table only: all replicas have the same.
    """
    own = [span for span in spans if whole[0] <= span.start and span.stop <= whole[1]]
    count = min(count, len(own))
    if count <= 1:
        return [Fragment([slice(0, whole[1] - whole[0])])]
    dealt = [own[number::count] for number in range(count)]
    return [Fragment(_pieces(some, whole[0]), frozenset(span.index for span in some)) for some in dealt]


def _pieces(spans: Sequence[SegmentSpan], origin: int) -> list[slice]:
    pairs = joined((span.start - origin, span.stop - origin) for span in spans)
    return [slice(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
