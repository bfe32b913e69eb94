"""Bundles of a pass: each is added once, for any repetitions, and none of an earlier pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected
from dbelief.sparse.table import pack
from tests.ps_server.packed import packed
from tests.ps_server.servers import A, B, Job

if TYPE_CHECKING:
    from tests.ps_server.conftest import Subject

Make = Callable[..., "Subject"]
ONE, TWO = Pusher(1, 11), Pusher(2, 12)


def bundle(number: int, turn: int = 1, pusher: Pusher = ONE, vector: str = "accrued") -> Push:
    return Push(pusher, 1, samples=5, vector=vector, clock=turn, bundle=number)


PACKED = replace(bundle(1), packed=True)


def accrued(subject: Subject) -> np.ndarray:
    parts = [subject.shard.segments[span.index].vectors["accrued"] for span in subject.spans]
    return np.concatenate(parts)


@given(st.integers(0, 10_000), st.booleans())
def test_the_sum_holds_each_bundle_once(make: Make, seed: int, ordered: bool) -> None:
    """Bundles of two passes from two replicas, in any order, repeated, some segments before the others."""
    rng = random.Random(seed)
    subject = make((4, 3, 2), initial=0.0)
    subject.shard.ordered = ordered
    count = rng.randint(1, 6)
    for turn in (1, 2):
        gradients = {
            n: np.random.default_rng([seed, turn, n]).standard_normal(9).astype(np.float32) for n in range(1, count + 1)
        }
        sends = [(n, s) for n in gradients for s in range(3) for _ in range(rng.randint(1, 3))]
        rng.shuffle(sends)
        for number, segment in sends:
            if turn == 2 and rng.random() < 0.2:
                subject.send(bundle(rng.randint(1, 9), turn=1), subject.full(100.0), [segment])
            pusher = rng.choice((ONE, TWO))
            subject.send(bundle(number, turn, pusher), gradients[number], [segment])
        expected = np.sum([g.astype(np.float64) for g in gradients.values()], axis=0)
        np.testing.assert_allclose(accrued(subject), expected, rtol=0, atol=1e-14)


def test_ordered_sum_does_not_depend_on_arrival(make: Make) -> None:
    gradients = {n: np.random.default_rng(n).standard_normal(9).astype(np.float32) * 10.0**n for n in range(1, 8)}
    found = set()
    for seed in range(20):
        subject = make((4, 3, 2), initial=0.0)
        subject.shard.ordered = True
        for number in random.Random(seed).sample(sorted(gradients), len(gradients)):
            subject.send(bundle(number), gradients[number])
        assert not subject.shard.segments[0].sum.waiting
        found.add(accrued(subject).tobytes())
    assert len(found) == 1


def test_a_repeated_bundle_is_a_duplicate_and_not_counted(make: Make) -> None:
    subject = make((4, 3), initial=0.0)
    subject.send(bundle(1), subject.full(1.0))
    subject.send(bundle(1, pusher=TWO), subject.full(1.0))
    assert (subject.shard.counters.pushes, subject.shard.counters.duplicates) == (2 + 2, 2)  # with the initial values
    assert subject.shard.ledgers().keys() == {("w", Pusher(0, 1_000_000))}, "bundles have no ledger"


@given(st.integers(0, 10_000), st.booleans())
def test_packed_bundles_give_the_bits_of_whole_ones(make: Make, seed: int, ordered: bool) -> None:
    """Any of the bundles, in any segments, in any order: what they leave out is 0."""
    rng = random.Random(seed)
    whole, short = make((4, 3, 2), initial=0.0), make((4, 3, 2), initial=0.0)
    whole.shard.ordered = short.shard.ordered = ordered
    gradients = np.random.default_rng(seed).standard_normal((6, 9), dtype=np.float32)
    sends = [(number, span) for number in range(1, 7) for span in whole.spans]
    for number, span in rng.sample(sends, len(sends)):
        values = np.maximum(gradients[number - 1][span.start : span.stop], 0)
        push = bundle(number)
        whole.shard.push(push, span.index, values)
        if rng.random() < 0.7:
            push, values = replace(push, packed=True), packed(values)
        short.shard.push(push, span.index, values)
    assert accrued(short).tobytes() == accrued(whole).tobytes()
    assert not short.shard.segments[0].sum.waiting


@pytest.mark.parametrize(
    ("push", "values", "reason"),
    [
        (bundle(1, vector="w"), np.ones(4, np.float32), "segment 0: bundles are added to 'accrued', not to 'w'"),
        (bundle(1), np.ones(3, np.float32), "segment 0: a bundle has all 4 numbers, not 3"),
        (bundle(1, turn=0), np.ones(4, np.float32), "segment 0: bundle 1 of pass 0; passes count from 1"),
        (PACKED, np.ones(4, np.float32), "segment 0: 4 numbers of float32 are no positions and numbers"),
        (PACKED, np.ones(3, np.float64), "segment 0: 3 numbers of float64 are no positions and numbers"),
        (
            PACKED,
            pack(np.array([0, 4]), np.ones(2, np.float32)),
            "segment 0: positions that do not rise strictly within",
        ),
        (PACKED, pack(np.array([-1, 0]), np.ones(2, np.float32)), "segment 0: positions that do not rise strictly"),
        (PACKED, pack(np.array([2, 1, 3]), np.ones(3, np.float32)), "segment 0: positions that do not rise strictly"),
    ],
)
def test_invalid_bundle_is_refused(make: Make, push: Push, values: np.ndarray, reason: str) -> None:
    subject = make((4,), initial=0.0)
    before = subject.everything()
    with pytest.raises(Rejected, match=reason):
        subject.shard.push(push, 0, values)
    assert subject.everything() == before


def test_over_the_wire_two_replicas_send_the_same_bundle(job: Job) -> None:
    for pusher in (A, B):
        pushed = job.client(pusher).push(
            job.full(2.0), job.held(0), Push(pusher, 1, samples=5, vector="accrued", clock=3, bundle=4)
        )
        assert pushed.duplicates == (0 if pusher is A else 40)
    for service in job.services:
        for segment in service.controller.require_shard().segments.values():
            assert (segment.vectors["accrued"] == 2.0).all()
            assert (segment.sum.number, segment.sum.added) == (3, {4})
