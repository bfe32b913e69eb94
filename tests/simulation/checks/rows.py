"""Rows of tables: in each version a bucket has what its pushes give, none of them lost or doubled.

Every copy of a bucket is followed from version to version: which pushes it has, and what their gradients make of its
rows by the formulas of `row_reference`. These are checked:

* a bucket has no push twice, and all pushes of a pusher up to the last, but for what was lost with a shard
* its rows in their order, with their keys, state, last pushes and counters, and what its index finds are those of its
  version, at leaders and followers, after each push, hand-over, promotion and restore, and in each snapshot set
* a pull returns the rows of the version that it names, with all pushes that were acknowledged before it began; what
  replicas read of them, ahead and later, is checked in `row_reads`
* each copy that may lead has every push that was acknowledged, and each set those acknowledged before it was begun
* a restored shard has the contents of the set that it was restored from, in all of its buckets
* at the end each sample was trained in its row in every epoch, but for pushes that are counted as lost
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from dbelief.core.push import LedgerRow, Push, Pusher
from dbelief.job import parse_job
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.sparse.table import SparseTable, number_tables
from ps_server import snapshot
from ps_server.replication import migration
from ps_server.store.bucket import Bucket
from ps_server.store.segment import Outcome, Segment
from ps_server.store.shard import Shard
from tests.simulation.models.jobs import SimulatedJob
from tests.simulation.models.marks import ROWS, Rows, marker

from .copies import Copies
from .row_reads import ReadWatch
from .row_reference import Contents, Made, TableReference

TOLERANCE = 1e-3
_ROUNDED = 2.0**-8  # by bf16
_EMPTY = Contents()

Pushed = tuple[Pusher, int, float]
"""Pusher, number and weight of a push."""


class RowWatch:
    """Follows all buckets of a simulation; of a job without tables there are none.

    Parameters
    ----------
    violation
        Called with the text of each violation.
    lossless
        Whether no shard was restored so far.
    detached
        Whether the running task is that of a follower without a leader: its records may be those of an earlier one.
    """

    def __init__(
        self,
        job: SimulatedJob,
        violation: Callable[[str], None],
        lossless: Callable[[], bool],
        detached: Callable[[], bool],
    ) -> None:
        self._violation, self._lossless, self._detached = violation, lossless, detached
        self._buckets: dict[int, TableReference] = {}
        self._made: dict[Made, Mapping[int, Rows]] = {}  # of each push, by bucket
        self._numbers: defaultdict[tuple[int, Pusher], list[int]] = defaultdict(list)  # of each pusher's pushes
        self._acknowledged: defaultdict[tuple[int, Pusher], int] = defaultdict(int)
        self._withdrawn: set[tuple[int, Pusher]] = set()
        self._known: list[dict[tuple[int, int], Contents]] = [{}]  # of each run: by segment and version
        self._sets: dict[str, dict[int, Contents]] = {}
        self._begun: dict[str, dict[tuple[int, Pusher], int]] = {}  # pushes that were acknowledged before a set
        self._last: dict[int, Contents] = {}  # of the last set
        buckets_of = lambda table, keys: self._buckets[table.first].split(keys)  # noqa: E731
        self._reads = ReadWatch(job, violation, lambda: marker.process(), buckets_of)
        if job.tables:
            parsed = parse_job(job.text(Path("data.npz"), None), Path(), "job")
            numbered = number_tables(parsed.tables, parsed.seed, ROWS)
            for table, section in zip(numbered, parsed.tables.values(), strict=True):
                reference = TableReference(table, section)
                self._buckets |= dict.fromkeys(range(table.first, table.first + table.count), reference)

    @property
    def _run(self) -> int:
        return len(self._known) - 1

    def outage(self, new_run: bool) -> None:
        """All processes have ended at once; `new_run`: versions and incarnations begin again, at the set's."""
        if new_run:
            self._known.append({})

    # -- clients -------------------------------------------------------------------------------------------

    def pushed(self, push: Push, rows: Mapping[str, Rows]) -> None:
        """Record a push that is sent next: by table, its keys and their gradients."""
        self._reads.pushed(rows)
        parts: dict[int, Rows] = {}
        for reference in dict.fromkeys(self._buckets.values()):
            keys, gradients = rows[reference.table.name]
            order = np.argsort(keys)
            ordered, sorted_gradients = keys[order], gradients[order]
            own = reference.split(ordered)
            parts |= {index: (ordered[places], sorted_gradients[places]) for index, places in own.items()}
        self._made[self._run, push.pusher, push.sequence] = parts
        self._numbers[self._run, push.pusher].append(push.sequence)

    def acknowledged(self, push: Push) -> None:
        """Record that a push was acknowledged."""
        if self._buckets:
            self._acknowledged[self._run, push.pusher] += 1

    def withdrawn(self, pusher: Pusher) -> None:
        """Record that gradients of a fenced pusher were dropped: they are acknowledged at the end of their round."""
        self._withdrawn.add((self._run, pusher))

    def lacking(self, copies: Copies) -> Iterator[str]:
        """What copies that may lead lack of the pushes acknowledged, one text each."""
        for whose, index, segment in copies.segments() if self._buckets else ():
            if isinstance(segment, Bucket):
                for lack in self._lacks(self._at(index, segment.version), self._acknowledged):
                    yield f"{whose} lacks {lack} in bucket {index}"

    def _lacks(self, contents: Contents, least: Mapping[tuple[int, Pusher], int]) -> Iterator[str]:
        for key, count in least.items():
            if contents.counts.get(key, 0) < count and key not in self._withdrawn:
                yield f"{count - contents.counts.get(key, 0)} of the {count} pushes of {key[1]} that were acknowledged"

    def _pull(
        self,
        real: Callable[..., list[np.ndarray]],
        client: Any,
        wanted: Mapping[SparseTable, np.ndarray],
        versions: np.ndarray,
        clock: int = 0,
    ) -> list[np.ndarray]:
        least = dict(self._acknowledged) if self._lossless() else {}
        rows = real(client, wanted, versions, clock)
        least = least if self._lossless() else {}
        for keys, found, table in zip(wanted.values(), rows, wanted, strict=True):
            for index, places in self._buckets[table.first].split(keys).items():
                contents = self._at(index, int(versions[index]))
                where = f"a read of version {versions[index]} of bucket {index}"
                expected = self._buckets[index].rows(contents, keys[places])
                rounded = _ROUNDED if table.pull == "bf16" else 0.0
                self._compare(where, keys[places], found[places], expected, rounded)
                for lack in self._lacks(contents, least):
                    self._violation(f"{where} lacks {lack}")
        return rows

    # -- shards --------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all processes of the simulation within the `with` block."""
        with ExitStack() as stack:
            for owner, name, wrapper in (
                (ShardedParameterClient, "pull_rows", self._pull),
                (Bucket, "apply", self._apply),
                (Bucket, "close_round", self._close_round),
                (Bucket, "load", self._load),
                (snapshot, "save", self._save),
                (migration, "promote", self._promote),
                (migration, "install", self._install),
            ):
                real = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, _call(wrapper, real)))
            stack.enter_context(self._reads.watching())
            yield

    def _at(self, index: int, version: int) -> Contents:
        """Contents of a bucket at a version."""
        found = (known[index, version] for known in reversed(self._known) if (index, version) in known)
        return next(found, _EMPTY)

    def _apply(self, real: Callable[..., Outcome], segment: Bucket, push: Push, *rest: Any) -> Outcome:
        before = segment.version
        outcome = real(segment, push, *rest)
        if outcome is Outcome.APPLIED:
            self._advance(segment, before, [(push.pusher, push.sequence, 1.0)])
        return outcome

    def _close_round(self, real: Callable[[Segment], None], segment: Bucket) -> None:
        before = segment.version
        due = [one for clock, staged in segment.staged.items() if clock <= segment.rounds for one in staged.items()]
        real(segment)
        if due:
            total = sum(one.samples for _, one in due)
            self._advance(segment, before, [(who, one.before.sequence + 1, one.samples / total) for who, one in due])

    def _advance(self, segment: Bucket, version: int, pushed: Sequence[Pushed]) -> None:
        """A bucket has made a step by these pushes, from this version."""
        index, before = segment.span.index, self._at(segment.span.index, version)
        made = {(self._run, pusher, sequence): weight for pusher, sequence, weight in pushed}
        for twice in before.pushes & made.keys():
            self._violation(f"bucket {index} has push {twice[2]} of {twice[1]} twice")
            return
        known = self._known[-1].get((index, segment.version))
        if known is None:
            contents = self._buckets[index].after(before, made, *self._gradient(index, made))
            self._known[-1][index, segment.version] = contents
        elif known.pushes != before.pushes | made.keys() and not self._detached():
            self._violation(f"bucket {index} at version {segment.version} has other pushes in another process")
            return
        for pusher, sequence, _ in pushed:
            self._check_complete(segment, pusher, sequence)
        self._check(segment)

    def _gradient(self, index: int, made: Mapping[Made, float]) -> Rows:
        """Weighted sum of pushes: rising keys, and their gradients."""
        parts = [(self._made[one][index], weight) for one, weight in made.items() if index in self._made[one]]
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(own for (own, _), _ in parts)]))
        total = np.zeros((keys.size, self._buckets[index].table.width))
        for (own, gradients), weight in parts:
            total[np.searchsorted(keys, own)] += weight * gradients
        return keys, total

    def _check_complete(self, segment: Bucket, pusher: Pusher, sequence: int) -> None:
        """A bucket has all pushes of a pusher up to this one, but for those that its ledger counts as lost."""
        sent = sum(number <= sequence for number in self._numbers[self._run, pusher])
        held = self._at(segment.span.index, segment.version).counts.get((self._run, pusher), 0)
        lost = segment.ledger.lost_of.get(pusher, 0)
        if sent - held > lost and not self._detached():
            self._violation(
                f"bucket {segment.span.index} has {held} of the first {sent} pushes of {pusher}, and its ledger counts "
                f"{lost} as lost"
            )

    def _load(self, real: Callable[..., None], segment: Bucket, stored: Any, *rest: Any) -> None:
        contents = self._at(segment.span.index, stored.version)
        real(segment, stored, *rest)
        self._known[-1][segment.span.index, segment.version] = contents
        self._check(segment)

    def _promote(self, real: Callable[..., None], segment: Segment, shard_epoch: int) -> None:
        contents = self._at(segment.span.index, segment.version)
        real(segment, shard_epoch)
        if isinstance(segment, Bucket):
            self._known[-1][segment.span.index, segment.version] = contents
            self._check(segment)

    def _install(self, real: Callable[..., None], carried: Any, segment: Segment) -> None:
        real(carried, segment)
        if isinstance(segment, Bucket):
            self._check(segment)

    def _check(self, segment: Bucket) -> None:
        """Its rows, and what its index finds, are those of its version."""
        if self._detached():
            return
        index, contents = segment.span.index, self._at(segment.span.index, segment.version)
        where = f"bucket {index} at version {segment.version}"
        self._check_arrays(where, index, contents, segment.parts()[0])
        if segment.applied != contents.steps:
            self._violation(f"{where} counts {segment.applied} steps of its rule, and has made {contents.steps}")
        width = self._buckets[index].table.width
        self._compare(f"the index of {where}", contents.keys, segment.read(contents.keys), contents.numbers[:, :width])

    def _check_arrays(self, where: str, index: int, contents: Contents, arrays: Mapping[str, np.ndarray]) -> None:
        """A bucket's arrays, as a segment holds and a set stores them, are these contents."""
        keys, stamps = arrays["keys"].view(np.int64), arrays["stamps"].view(np.uint32)
        if not np.array_equal(keys, contents.keys):
            odd = np.setxor1d(keys, contents.keys)
            what = f"keys {odd[:3]} differ" if odd.size else "in another order"
            self._violation(f"{where} has {keys.size} rows, and its pushes {contents.keys.size}: {what}")
            return
        (numbers,) = (values for name, values in arrays.items() if name.startswith("rows"))
        self._compare(where, keys, numbers.reshape(-1, self._buckets[index].stride), contents.numbers)
        if (odd := keys[stamps != contents.stamps]).size:
            self._violation(f"{where}: keys {odd[:3]} have other last pushes")
        if "counters" in arrays and arrays["counters"].tobytes() != (
            contents.waiting or bytes(arrays["counters"].nbytes)
        ):
            self._violation(f"{where} counts keys without a row otherwise than its pushes")

    def _compare(
        self, where: str, keys: np.ndarray, found: np.ndarray, expected: np.ndarray, rounded: float = 0.0
    ) -> None:
        """Compare rows; `rounded`: the share of a number by which it may be off."""
        if not keys.size:
            return
        wrong = ~(np.abs(found - expected) <= TOLERANCE + rounded * np.abs(expected)).all(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            self._violation(f"{where}: key {keys[row]} has {found[row].tolist()}, its pushes {expected[row].tolist()}")

    # -- snapshot sets -------------------------------------------------------------------------------------

    def _save(self, real: Callable[..., Any], shard: Shard, folder: Any, number: int, set_id: str, *rest: Any) -> Any:
        self._begun.setdefault(set_id, dict(self._acknowledged))
        return real(shard, folder, number, set_id, *rest)

    def check_set(self, set_id: str, rows: Sequence[Mapping[str, Any]], lasts: Callable[[Any], Any]) -> None:
        """Check the buckets of a complete set: rows of its manifests, with their arrays."""
        held = self._last = self._sets[set_id] = {}
        for row in rows:
            if row["index"] not in self._buckets:
                continue
            held[row["index"]] = contents = self._at(row["index"], row["version"])
            where = f"set {set_id}, bucket {row['index']} at version {row['version']}"
            self._check_arrays(where, row["index"], contents, row["arrays"])
            if self._lossless():
                self._check_ledger(where, contents, lasts(row))
                for lack in self._lacks(contents, self._begun.get(set_id, {})):
                    self._violation(f"{where} lacks {lack} before it was begun")

    def _check_ledger(self, where: str, contents: Contents, lasts: Mapping[Pusher, LedgerRow]) -> None:
        for pusher, last in lasts.items():
            counted = sum(number <= last.sequence for number in self._numbers[self._run, pusher])
            held = contents.counts.get((self._run, pusher), 0)
            if held != counted:
                self._violation(f"{where} has {held} pushes of {pusher}, and its ledger counts {counted}")

    def restored(self, shard: Shard, set_id: str) -> None:
        """Check that a shard which was restored from a set has its contents."""
        for index, segment in shard.segments.items():
            known = self._sets.get(set_id, {}).get(index)
            if known is not None and self._at(index, segment.version).pushes != known.pushes:
                self._violation(f"bucket {index} was restored, and has other pushes than set {set_id}")

    def check_end(self, job: SimulatedJob, lost: int, twice: int) -> None:
        """Check the last set of a job that is done; `lost`, `twice`: pushes that are counted as lost, or trained twice.

        Each bucket has its own: shards may have lost different pushes.
        """
        of_table = {
            table.name: dict(zip(*(part.tolist() for part in table.samples()), strict=True)) for table in job.tables
        }
        for index, contents in self._last.items():
            reference = self._buckets[index]
            of_key = of_table[reference.table.name]
            trained = self._trained(index, contents)
            more = [trained[key] - job.epochs * of for key, of in of_key.items() if reference.bucket_of(key) == index]
            skipped, doubled = -sum(min(0, one) for one in more), sum(max(0, one) for one in more)
            if skipped > lost * job.push_samples or doubled > twice * job.push_samples:
                self._violation(
                    f"bucket {index} lacks {skipped} samples and has {doubled} twice; {lost} pushes count as lost, and "
                    f"{twice} as trained twice"
                )

    def _trained(self, index: int, contents: Contents) -> Mapping[int, int]:
        """Samples of each key in the pushes that a bucket has."""
        trained: defaultdict[int, int] = defaultdict(int)
        for made in contents.pushes:
            for key, gradient in zip(*self._made[made].get(index, ((), ())), strict=True):
                trained[int(key)] += int(gradient[0])
        return trained


def _call(wrapper: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any, **named: Any) -> Any:
        return wrapper(real, *words, **named)

    return call
