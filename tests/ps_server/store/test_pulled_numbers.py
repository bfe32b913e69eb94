"""Numbers that a shard keeps of what was fetched: what they stand for, their bytes, and when there are none."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.codec import bfloat16_difference
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.push import Pusher
from dbelief.optim import make_rule
from ps_server.store.pulled_numbers import PulledNumbers
from ps_server.store.shard import Shard
from tests.ps_server.conftest import Subject

N = 300
A = Pusher(1, 11)


def halves_of(values: np.ndarray) -> np.ndarray:
    return BFloat16().encode(values).view(np.uint16)


class Reader:
    """A replica, which has what it was answered last."""

    def __init__(self, pulled: PulledNumbers) -> None:
        self.pulled = pulled
        self.version: int | None = None
        self.halves = np.empty(0, np.uint16)

    def read(self, index: int, version: int, values: np.ndarray) -> bool:
        """Whether it came as a difference."""
        payload, difference = self.pulled.answer(index, version, values, self.version)
        halves = np.empty(N, np.uint16)
        if difference:
            assert self.version is not None
            bfloat16_difference.decode(payload.data, self.halves, self.version, halves)
        else:
            halves[:] = payload.view(np.uint16)
        np.testing.assert_array_equal(halves, halves_of(values))
        self.version, self.halves = version, halves
        return difference


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 1, 2])), max_size=30), st.integers(0, 99))
def test_readers_have_the_numbers_whatever_they_had(turns: list[tuple[int, int]], seed: int) -> None:
    """Turns: who reads, after how many versions; one reader has been started again each time."""
    rng, pulled = np.random.default_rng(seed), PulledNumbers()
    values, version = rng.standard_normal(N, dtype=np.float32), 0
    readers = [Reader(pulled) for _ in range(3)]
    last: int | None = None
    for who, later in turns:
        for _ in range(later):
            values = values + np.float32(2.0**-9) * rng.standard_normal(N, dtype=np.float32)
            version += 1
        reader = readers[who] if who < 3 else Reader(pulled)
        had = reader.version
        came = reader.read(7, version, values)
        if last is not None and last != version:
            assert came == (had == last), "the first that reads a version decides what it is a difference from"
        last = version
        assert pulled.nbytes < 4 * N


def test_numbers_that_are_far_are_sent_whole() -> None:
    rng, pulled = np.random.default_rng(1), PulledNumbers()
    reader = Reader(pulled)
    for version in range(3):
        values = rng.integers(0, 1 << 32, N, np.uint32) & np.uint32(0xBFFFFFFF)
        assert not reader.read(0, version, values.astype(np.uint32).view(np.float32))
    assert pulled.nbytes == 2 * N


def shard_of(make: Callable[..., Subject], differences: bool = False, lock_free: bool = False) -> Shard:
    subject = make(lengths=(N, N), initial=None)
    shard = Shard(subject.spans, make_rule("sgd", {}), lock_free=lock_free, differences=differences)
    given = Subject(shard, subject.spans)
    given.assign(1.0)
    assert shard.pulled is None, "initial values may still change"
    shard.make_ready()
    return shard


def test_segments_that_have_gone_leave_nothing(make: Callable[..., Subject]) -> None:
    shard = shard_of(make, differences=True)
    assert shard.pulled is not None
    for index in range(2):
        shard.pulled.answer(index, 0, np.ones(N, np.float32), None)
    assert shard.pulled.nbytes == 2 * 2 * N
    both = dict(shard.segments)
    shard.set_segments({1: both[1]}, {})
    assert shard.pulled.nbytes == 2 * N
    shard.set_segments(both, {0: None})
    assert not shard.pulled.answer(0, 1, np.ones(N, np.float32), 0)[1], "it was elsewhere meanwhile"


@pytest.mark.parametrize("options", [{}, {"differences": True, "lock_free": True}])
def test_some_shards_keep_nothing(make: Callable[..., Subject], options: dict[str, bool]) -> None:
    assert shard_of(make, **options).pulled is None
