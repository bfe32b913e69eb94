"""Checks of the simulation: exact sums in any order, torn pushes, stored sets, the bound, tables, a trajectory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from coordinator.sandblaster.lbfgs_driver import Phase, StoppingRules
from dbelief.core.layout import SegmentSpan
from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS, LedgerRow, Push, Pusher
from dbelief.job import parse_job
from dbelief.optim import Rule, make_row_rule, make_rule
from dbelief.process.runtime import use_runtime
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.sparse.table import SparseTable, number_tables, pack
from dbelief.sparse.table_reader import TableReader
from ps_server.store.admission import PushAdmission
from ps_server.store.bucket import new_bucket
from ps_server.store.segment import Segment
from ps_server.store.shard import Shard
from ps_server.store.staleness import StalenessBarrier

from .checks.lead import LeadWatch
from .checks.rounds import RoundWatch, Sent
from .checks.row_reads import ReadWatch
from .checks.row_reference import TableReference
from .checks.rows import RowWatch
from .checks.stored_sets import StoredSets
from .checks.trajectory import trajectory
from .models.basin import basin, sums
from .models.jobs import JOBS
from .models.marks import LENGTH, ROWS, SAMPLES
from .world.runtime import SimulatedRuntime
from .world.scheduler import Scheduler
from .world.torn import torn_pushes


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_exact_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 3, (ROWS, LENGTH)).astype(np.float32)
    loss, gradient = sums(w, np.arange(SAMPLES, dtype=np.float64))
    portions = [np.arange(start, min(start + 8, SAMPLES), dtype=np.float64) for start in range(0, SAMPLES, 8)]
    rng.shuffle(portions)
    total = np.zeros_like(gradient)
    for portion in portions:
        total += (sums(w, portion)[1] / len(portion)).astype(np.float32) * np.float32(len(portion))
    assert math.fsum(sums(w, portion)[0] for portion in portions) == loss
    assert np.array_equal(total, gradient)
    assert len({sums(w, portion)[0] for portion in portions}) == len(portions), "each portion is another one"


def test_the_trajectory_descends_in_at_least_200_bundles() -> None:
    found = trajectory(StoppingRules(iterations=4), 10)
    assert len(found.losses) * math.ceil(SAMPLES / 8) >= 200
    assert found.losses[-1] < found.losses[0]
    assert (Phase.MOVE, 2) in found.scalars, "a search has more than one trial"
    start = basin.parameters(np.random.default_rng(0))["marks"]
    assert not np.array_equal(found.parameters, start)


@pytest.mark.parametrize("lock_free", [False, True])
def test_only_a_push_without_the_lock_is_torn(lock_free: bool) -> None:
    scheduler, seen = Scheduler(1, 1.0), set[tuple[float, float]]()
    process = scheduler.process("one")
    with use_runtime(SimulatedRuntime(scheduler)), torn_pushes(scheduler):
        segment = Segment(SegmentSpan(0, 0, 4), make_rule("sgd", {}), lock_free=lock_free)
        segment.vectors[PARAMETERS] = w = np.zeros(4, np.float32)

        def push() -> None:
            for sequence in range(1, 9):
                with segment.lock:
                    segment.apply(Push(Pusher(0, 1), sequence), np.full(4, -1, np.float32), 0, np.float32(1))

        def read() -> None:
            while w[-1] < 8:
                with segment.lock:
                    seen.add((float(w[0]), float(w[-1])))

        tasks = [scheduler.spawn(process, name, call) for name, call in (("push", push), ("read", read))]
        scheduler.run(10.0)
        assert all(task.over for task in tasks)
        assert [task.error for task in tasks] == [None, None]
    assert any(first != last for first, last in seen) == lock_free


@pytest.mark.parametrize("base", [None, 2])
def test_a_set_counts_a_gradient_of_a_later_round_only_where_it_was_lost(base: int | None) -> None:
    """A restored segment waits for round 1; a pusher's gradients 1 and 2 are of rounds 1 and 2, or 1 was lost."""
    violations, pusher = list[str](), Pusher(0, 1)
    buckets = RowWatch(JOBS["synchronous"], violations.append, lambda: False, lambda: False)
    sets = StoredSets(JOBS["synchronous"], lambda: False, violations.append, buckets)
    shard, gradient = Shard([SegmentSpan(0, 0, 4)], make_rule("sgd", {}), staleness=0), np.ones(4, np.float32)
    shard.push(Push(Pusher(9, 9), 1, assign=True), 0, gradient)
    shard.make_ready()
    segment = shard.segments[0]
    segment.rounds, segment.version, segment.first_version = 1, 8, 8
    with sets.watching():
        for sequence in (1, 2) if base is None else (2,):
            shard.push(Push(pusher, sequence, clock=sequence, base=base), 0, gradient)
    assert segment.applied_ledger()[PARAMETERS, pusher] == LedgerRow(0 if base is None else 1)
    sets._clocks = {(pusher, 1): 1, (pusher, 2): 2}
    for version, last in (7, 1), (8, 1), (8, 2):
        row = {"index": 0, "version": version, "rounds": 1, "ledger": [[PARAMETERS, *pusher, last, 3, 4 * last]]}
        sets._check_rounds(Path(f"{version}-{last}"), [row])
    wrong = ["7-1", "8-1", "8-2"] if base is None else ["7-1", "8-2"]  # version 7: of the incarnation before
    assert [text.split()[1] for text in violations] == wrong


@pytest.mark.parametrize(("restored", "member_epoch"), [(False, 0), (False, 3), (True, 0)])
def test_a_read_ahead_of_an_unfinished_lease_is_a_violation(restored: bool, member_epoch: int) -> None:
    """With a bound of 2, a lease of clocks 8 to 12 of which clock 8 was pushed allows reads up to clock 11."""
    violations = list[str]()
    watch = LeadWatch(violations.append, lambda: not restored)
    segment = Segment(SegmentSpan(0, 0, 4), make_rule("sgd", {}))
    watch.stored([(DataLease(1, 0, 0, 16, 0, clock=8, member_epoch=member_epoch), 5)])
    barrier = StalenessBarrier(2, {0: segment})  # without members: it lets all reads pass
    with watch.watching():
        barrier.applied(segment, Push(Pusher(0, 5), 1, clock=8))
        barrier.wait([segment], 11, 0.0)
        assert not violations
        barrier.wait([segment], 12, 0.0)
    assert violations == [
        "segment 0 is read for clock 12, and incarnation 5 has passed 9 of its lease of clocks 8 to 12"
    ]


def test_a_replaced_shard_knows_no_lease_of_the_restored_one() -> None:
    """It has left without a follower, and a replica that does not know that yet still reads there."""
    violations = list[str]()
    watch, segment = LeadWatch(violations.append, lambda: False), Segment(SegmentSpan(0, 0, 4), make_rule("sgd", {}))
    watch.stored([(DataLease(1, 0, 0, 16, 0, clock=8, member_epoch=3), 5)])
    barrier = StalenessBarrier(2, {0: segment})
    barrier.set_membership(2, [])
    with watch.watching():
        barrier.wait([segment], 12, 0.0)
        assert violations == []
        barrier.set_membership(3, [])
        barrier.wait([segment], 12, 0.0)
    assert len(violations) == 1


@pytest.mark.parametrize("wrong", ["", "values", "weight", "member", "fenced"])
def test_a_round_is_the_outer_step_of_all_that_replicas_have_sent(wrong: str) -> None:
    violations, rng = list[str](), np.random.default_rng(0)
    watch = RoundWatch(violations.append, lambda: True, lambda: False)
    segment = Segment(SegmentSpan(0, 0, LENGTH), make_rule("nesterov", {"mu": 0.5}))
    segment.vectors[PARAMETERS], segment.state = np.zeros(LENGTH, np.float32), (np.zeros(LENGTH, np.float32),)
    with watch.watching():
        for replica, samples in enumerate((2, 4, 4)):
            push, values = Push(Pusher(replica, replica + 1), 1, np.float32(0.7), samples), rng.normal(0, 1, LENGTH)
            sent = Sent(push, values.astype(np.float32), np.ones(SAMPLES, np.int64))
            watch.sent(0, sent)
            watch.acknowledged(0, push)
            if replica == 2 and wrong in ("member", "fenced"):
                continue
            values = sent.values + np.float32(wrong == "values")
            segment.stage(replace(push, samples=4) if wrong == "weight" else push, values)
        PushAdmission(0).fence([3] if wrong == "fenced" else [])
        segment.close_round()
    differs = "segment 0 after round 0 is not the outer step of what replicas [0, 1, 2] have sent"
    texts = {
        "values": differs,
        "weight": differs,
        "member": "segment 0 lacks the pushes of replicas [2] in round 0, which were acknowledged",
    }
    assert violations == ([texts[wrong]] if wrong in texts else [])


class Buckets:
    """All buckets of a job, followed by a watch."""

    def __init__(self, job: str) -> None:
        self.violations: list[str] = []
        self.watch, self.job = RowWatch(JOBS[job], self.violations.append, lambda: True, lambda: False), JOBS[job]
        parsed = parse_job(self.job.text(Path("data.npz"), None), Path(), "job")
        tables = number_tables(parsed.tables, parsed.seed, ROWS)
        rules = [one.rule.model_dump(exclude={"name", "rate"}) for one in parsed.tables.values()]
        named = zip(tables, parsed.tables.values(), rules, strict=True)
        self.rules: dict[SparseTable, Rule] = {one: make_row_rule(own.rule.name, rule) for one, own, rule in named}
        spans = [span for table in tables for span in table.spans(ROWS * LENGTH)]
        self.held = {span.index: new_bucket(span, self.rules) for span in spans}
        self.sequence = 0

    def push(self, samples: np.ndarray) -> Push:
        """Push the rows of a mini-batch to all buckets."""
        self.sequence += 1
        push = Push(Pusher(0, 1), self.sequence, np.float32(1), len(samples))
        rows = {own.name: own.pushed(samples, self.sequence % 4, self.sequence // 4) for own in self.job.tables}
        self.watch.pushed(push, rows)
        packed: dict[int, np.ndarray] = {}
        for table in self.rules:
            keys, gradients = rows[table.name]
            order, parts = table.split(keys)
            packed |= {index: pack(keys[order[own]], gradients[order[own]]) for index, own in parts}
        for index, bucket in self.held.items():
            bucket.apply(push, packed.get(index, np.zeros(0, np.float32)), 0, bucket.rate_of(push))
        return push


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if job.tables])
def test_buckets_have_what_the_reference_gives(job: str) -> None:
    """Rules, initial rows, buckets of keys, and an index that grows, against formulas and whole numbers of Python."""
    buckets, rng = Buckets(job), np.random.default_rng(0)
    with buckets.watch.watching():
        for _ in range(60):
            buckets.push(rng.choice(SAMPLES, 4, replace=False))
    assert buckets.violations == []
    assert all(bucket.arena.count for bucket in buckets.held.values())


@pytest.mark.parametrize("wrong", ["twice", "missing", "read", "state", "last push", "order", "index"])
def test_a_bucket_that_differs_from_its_pushes_is_a_violation(wrong: str) -> None:
    buckets, rng = Buckets("tables"), np.random.default_rng(0)
    with buckets.watch.watching():
        push = buckets.push(rng.choice(SAMPLES, 4, replace=False))
        bucket = buckets.held[ROWS + 2]  # of the table with a state
        if wrong == "twice":
            bucket.ledger.last.clear()
            bucket.apply(push, np.zeros(0, np.float32), 0, np.float32(1))
        elif wrong == "missing":
            lost = replace(push, sequence=2)
            buckets.watch.pushed(lost, {own.name: own.pushed(np.arange(4), 3, 9) for own in buckets.job.tables})
            for one in buckets.held.values():
                one.ledger.skip(lost)
            buckets.sequence = 2
        elif wrong == "read":
            bucket.arena.touch(np.array([7]), 0)
        elif wrong == "state":
            bucket.arena.rows().numbers[:, -1] += 1
        elif wrong == "last push":
            bucket.arena.rows().stamps[:] -= 1
        elif wrong == "order":
            for values in bucket.arena.rows():
                values[:] = values[::-1].copy()
        else:
            bucket.arena._slots[:] = 0
        if wrong != "twice":
            buckets.push(np.arange(4))
    texts = {"twice": "has push 1 of", "missing": "has 2 of the first 3 pushes", "read": "keys [7] differ"}
    expected = texts.get(wrong, "bucket 5 at version 2")
    assert buckets.violations
    assert all(expected in text for text in buckets.violations if "bucket 5" in text)


@pytest.mark.parametrize("wrong", ["", "own", "clock", "age", "version", "row"])
def test_a_row_that_no_pull_may_bring_is_a_violation(wrong: str) -> None:
    """Of a table with a cache for two steps, and of one that is read ahead, with a bound of 2; each pull differs."""
    violations, job, pulled = list[str](), JOBS["tables-bounded"], itertools.count(1)
    parsed, keys = parse_job(job.text(Path("data.npz"), None), Path(), "job"), np.arange(8)
    tables = {one.name: one for one in number_tables(parsed.tables, parsed.seed, ROWS)}
    of_table = {one: TableReference(one, parsed.tables[name]) for name, one in tables.items()}
    watch = ReadWatch(job, violations.append, lambda: 1, lambda table, keys: of_table[table].split(keys))

    def pull_rows(_: object, wanted: Mapping[SparseTable, np.ndarray], versions: np.ndarray, __: int = 0) -> list[Any]:
        version = versions[:] = next(pulled)
        return [np.full((keys.size, table.width), version, np.float32) for table, keys in wanted.items()]

    with mock.patch.object(ShardedParameterClient, "pull_rows", pull_rows), watch.watching():
        reader = TableReader.of_job(parsed, ShardedParameterClient.__new__(ShardedParameterClient), ROWS)
        cache = reader.caches["kept"]
        for step in range(7):
            reader.read(tables["kept"], keys)
            reader.read(tables["ahead"], keys)
            reader.prefetch(tables["ahead"], keys)
            if step % 2:
                watch.pushed({"kept": (keys[step:], np.ones((keys[step:].size, 2), np.float32))})
                reader.pushed(tables["kept"], keys[step + (wrong == "own") :])
            if wrong == "clock":
                cache._clocks[:] = 9
            elif wrong == "age":
                cache._due[:] = 9
            elif wrong == "version":
                cache._versions[:] = 9
            elif wrong == "row":
                cache._rows[:] += 1
            reader.stepped(step + 1 + step * (wrong == "clock"))
    assert bool(violations) == bool(wrong)
    assert all(text.startswith("kept: ") for text in violations)
    assert cache.hits > 8
