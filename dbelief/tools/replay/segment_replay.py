"""Segments during a replay of the logs, and checks of the logs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dbelief.core.absent import Missed, Ranges, covers, in_segment
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import AppliedPush, Pusher
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule, apply_present, missed_after
from dbelief.rundir.record import ComputedBatch

PushId = tuple[Pusher, int]
"""A pusher, and the sequence number of its push."""


@dataclass
class ReplayedSegment:
    """A segment during the replay.

    `rows` are still to be applied. `applied` and `missed` are as on a shard. `needed` counts, by version, the gradients
    still to be computed from it; `kept` holds the values of those versions.
    """

    span: SegmentSpan
    values: np.ndarray
    state: tuple[np.ndarray, ...]
    version: int = 0
    applied: int = 0
    missed: Missed = ()
    rows: deque[AppliedPush] = field(default_factory=deque)
    needed: Counter[int] = field(default_factory=Counter)
    kept: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def begin(cls, span: SegmentSpan, initial: np.ndarray, rule: Rule) -> ReplayedSegment:
        """The segment at version 0."""
        states = tuple(np.full(span.length, value, np.float32) for value in rule.state.values())
        return cls(span, initial[span.start : span.stop].copy(), states)

    def keep(self) -> None:
        """Keep the current version, if a gradient needs it."""
        if self.needed[self.version]:
            self.kept[self.version] = self.values.copy()

    def release(self, version: int) -> None:
        """Count one gradient that no longer needs a version; drop the version after the last."""
        self.needed[version] -= 1
        if not self.needed[version]:
            del self.kept[version]

    def apply(self, rule: Rule, gradient: np.ndarray, absent: Ranges = ()) -> None:
        """Apply the next row, but not to the ranges of the flat vector that are absent."""
        part = gradient[self.span.start : self.span.stop]
        self.step(rule, part, self.rows.popleft().rate, in_segment(absent, self.span))

    def step(self, rule: Rule, part: np.ndarray, applied_rate: float, here: Ranges = ()) -> None:
        """Step by the segment's part of a gradient, but not in its ranges `here`, which are absent."""
        rate = np.float32(applied_rate)
        if not covers(here, self.span.length):
            apply_present(rule, self.values, part, self.state, rate, self.applied, here, self.missed)
            self.missed = missed_after(rule, self.missed, here) if here else self.missed
            self.applied += 1
        self.version += 1
        self.keep()


def begin(
    initial: np.ndarray,
    spans: Sequence[SegmentSpan],
    rule: Rule,
    applied: Sequence[AppliedPush],
    recipes: Mapping[PushId, ComputedBatch],
) -> list[ReplayedSegment]:
    """All segments at version 0, each with its rows.

    Raises
    ------
    RuntimeFailure
        The logs are incomplete; names the missing push.
    """
    _check_whole(applied, recipes, len(spans))
    segments = [ReplayedSegment.begin(span, initial, rule) for span in spans]
    for row in applied:
        segments[row.segment].rows.append(row)
    return segments


def take(segments: Sequence[ReplayedSegment], versions: Sequence[int], out: np.ndarray) -> bool:
    """Copy needed versions into (N,) `out`, and release them; False, without any effect, where one does not exist."""
    pairs = list(zip(segments, versions, strict=True))
    if any(version not in segment.kept for segment, version in pairs):
        return False
    for segment, version in pairs:
        out[segment.span.start : segment.span.stop] = segment.kept[version]
        segment.release(version)
    return True


def values_of(segments: Iterable[ReplayedSegment]) -> np.ndarray:
    """The complete vector in its current state."""
    return np.concatenate([segment.values for segment in segments])


def _check_whole(applied: Sequence[AppliedPush], recipes: Mapping[PushId, ComputedBatch], count: int) -> None:
    """Raise RuntimeFailure where a row is missing that other rows refer to."""
    seen: list[dict[Pusher, int]] = [{} for _ in range(count)]
    for row in applied:
        if not 0 <= row.segment < count:
            raise RuntimeFailure(f"the log names segment {row.segment}, the job has {count}")
        last = seen[row.segment].get(row.pusher, row.sequence - 1)
        if row.sequence != last + 1:
            raise RuntimeFailure(f"segment {row.segment}: {push_name(row)} follows its push {last} in the log")
        seen[row.segment][row.pusher] = row.sequence
        recipe = recipes.get((row.pusher, row.sequence))
        if recipe is None:
            raise RuntimeFailure(f"segment {row.segment} applied {push_name(row)}, and no replica's log holds it")
        if len(recipe.versions) != count:
            raise RuntimeFailure(
                f"{push_name(row)} was computed from {len(recipe.versions)} segments, the job has {count}"
            )
    held = {(row.segment, row.pusher, row.sequence) for row in applied}
    for recipe in recipes.values():
        for index in range(count) if recipe.acknowledged else ():
            if (index, recipe.pusher, recipe.sequence) not in held:
                raise RuntimeFailure(
                    f"segment {index}: {push_name(recipe)} was acknowledged, and the shard's log lacks it"
                )


def push_name(row: AppliedPush | ComputedBatch) -> str:
    """Name of a push in error messages."""
    return f"push {row.sequence} of replica {row.pusher.replica} in incarnation {row.pusher.incarnation}"
