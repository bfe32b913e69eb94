"""Rounds of DiLoCo at the shards: each outer step is that of the differences which the replicas have sent.

What replicas send is recorded where their pushes begin. Every round that a copy of a segment closes is computed again
from that: the mean by weight, in rising order of clock and replica, and one step of the rule. The parameters have its
bits. And while no shard was restored:

* a push that was acknowledged is in its round, or with a quorum in a later one, unless its incarnation was fenced
* what a replica fetches are the parameters after a round, in bf16, not those before
* each sample of each epoch is in a round of each segment
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

import numpy as np

from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.optim import apply_rule
from ps_server.store.admission import PushAdmission
from ps_server.store.segment import Segment
from tests.simulation.models.marks import LENGTH, ROWS, SAMPLES

Round = tuple[int, int]
"""Segment and clock."""
STALE = 0.5
"""Factor of a push's weight for each round that it is late."""


class Sent(NamedTuple):
    """Part of a push: its values in one segment, and how often it has each sample."""

    push: Push
    values: np.ndarray
    samples: np.ndarray


class RoundWatch:
    """Compares rounds with what was sent.

    Parameters
    ----------
    violation
        Called with the text of each violation.
    lossless
        Whether no shard was restored so far.
    detached
        Whether the running task is that of a copy which cannot lead any more.
    quorum
        Whether a round may end without some of its members.
    """

    def __init__(
        self,
        violation: Callable[[str], None],
        lossless: Callable[[], bool],
        detached: Callable[[], bool],
        quorum: bool = False,
    ) -> None:
        self._violation, self._lossless, self._detached, self._quorum = violation, lossless, detached, quorum
        self._sent: defaultdict[Round, dict[Pusher, Sent]] = defaultdict(dict)
        self._acknowledged: defaultdict[Round, set[Pusher]] = defaultdict(set)
        self._closed: defaultdict[Round, set[Pusher]] = defaultdict(set)  # pushes that took effect, by their own round
        self._ended: set[Round] = set()
        self._after: defaultdict[Round, list[np.ndarray]] = defaultdict(list)  # parameters; copies may differ
        self._fenced: set[int] = set()
        self._trained = np.zeros((ROWS, SAMPLES), np.int64)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all shards within the `with` block."""
        close, fence = Segment.close_round, PushAdmission.fence

        def closed(segment: Segment) -> None:
            if self._detached():
                return close(segment)
            clock, due = segment.rounds, sorted(one for one in segment.staged if one <= segment.rounds)
            pushers = [(one, pusher) for one in due for pusher in sorted(segment.staged[one])]
            wanted = self._outer_step(segment, pushers)
            if not clock:
                self._after[segment.span.index, -1].append(segment.vectors[PARAMETERS].copy())
            close(segment)
            if not np.array_equal(segment.vectors[PARAMETERS], wanted):
                self._violation(
                    f"segment {segment.span.index} after round {clock} is not the outer step of what replicas "
                    f"{[pusher.replica for _, pusher in pushers]} have sent"
                )
            self._count(segment, clock, pushers)

        def fenced(admission: PushAdmission, incarnations: Iterable[int]) -> None:
            self._fenced.update(incarnations := list(incarnations))
            fence(admission, incarnations)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(Segment, "close_round", closed))
            stack.enter_context(mock.patch.object(PushAdmission, "fence", fenced))
            yield

    def outage(self) -> None:
        """All processes have ended at once: clocks and incarnations may begin again."""
        for known in self._sent, self._acknowledged, self._closed, self._after:
            known.clear()
        self._ended.clear()

    # -- replicas ------------------------------------------------------------------------------------------

    def sent(self, index: int, sent: Sent) -> None:
        """Record what a push that begins has for a segment."""
        push = sent.push
        if self._sent[index, push.clock].setdefault(push.pusher, sent) is not sent:
            self._violation(f"replica {push.pusher.replica} pushes segment {index} twice in round {push.clock}")

    def acknowledged(self, index: int, push: Push) -> None:
        """Record that a push is acknowledged, in one of its segments."""
        self._acknowledged[index, push.clock].add(push.pusher)
        if (index, push.clock) in self._ended and not self._quorum:
            self._check_members(index, push.clock)

    def fetched(self, index: int, clock: int, pusher: Pusher, values: np.ndarray) -> None:
        """Check what a replica has fetched for a clock: the next round cannot close without its push.

        With a quorum it can, and a replica that leaves out rounds may be ahead of a segment.
        """
        after = self._after.get((index, clock - 1), ())
        known = clock == 0 or any(np.array_equal(values, _nearest(one)) for one in after)
        if not known and self._quorum:
            ended = [one for (at, _), copies in self._after.items() if at == index for one in copies]
            known = not ended or any(np.array_equal(values, _nearest(one)) for one in ended)
        if not known and self._lossless() and pusher.incarnation not in self._fenced:
            self._violation(
                f"replica {pusher.replica} does not have the parameters after round {clock - 1} of segment {index}"
            )

    # -- shards --------------------------------------------------------------------------------------------

    def _outer_step(self, segment: Segment, pushers: list[tuple[int, Pusher]]) -> np.ndarray:
        """The parameters of a segment after its next round, with pushes of these clocks."""
        w, states = segment.vectors[PARAMETERS].copy(), tuple(state.copy() for state in segment.state)
        index = segment.span.index
        for clock, pusher in pushers:
            if pusher not in self._sent[index, clock]:
                self._violation(
                    f"segment {index} holds a push of replica {pusher.replica} that is not of round {clock}"
                )
                return w
        if pushers:
            sent = [self._sent[index, clock][pusher] for clock, pusher in pushers]
            weights = [
                one.push.samples * STALE ** (segment.rounds - clock)
                for one, (clock, _) in zip(sent, pushers, strict=True)
            ]
            mean = np.zeros(LENGTH, np.float32)
            for weight, one in zip(weights, sent, strict=True):
                mean += one.values * np.float32(weight / sum(weights))
            apply_rule(segment.rule, w, mean, states, sent[0].push.rate, segment.applied + 1)
        return w

    def _count(self, segment: Segment, clock: int, pushers: list[tuple[int, Pusher]]) -> None:
        index = segment.span.index
        self._after[index, clock].append(segment.vectors[PARAMETERS].copy())
        for at, pusher in pushers:
            if pusher not in self._closed[index, at]:
                self._closed[index, at].add(pusher)
                self._trained[index] += self._sent[index, at][pusher].samples
        if (index, clock) not in self._ended:
            self._ended.add((index, clock))
            if not self._quorum:  # else a push may wait for the end of a later round
                self._check_members(index, clock)

    def _check_members(self, index: int, clock: int) -> None:
        missing = self._acknowledged[index, clock] - self._closed[index, clock]
        missing = {pusher for pusher in missing if pusher.incarnation not in self._fenced}
        if missing and self._lossless():
            self._violation(
                f"segment {index} lacks the pushes of replicas {sorted(one.replica for one in missing)} in round "
                f"{clock}, which were acknowledged"
            )

    def check_end(self, epochs: int) -> None:
        """Each push has taken effect that was acknowledged, and each sample, once in each epoch at least."""
        for index, clock in list(self._acknowledged):
            self._check_members(index, clock)
        if self._lossless() and (self._trained < epochs).any():
            index, sample = np.argwhere(self._trained < epochs)[0]
            self._violation(
                f"segment {index} has sample {sample} in {self._trained[index, sample]} rounds, of {epochs} epochs"
            )


def _nearest(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bf16, in which shards answer pulls."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
