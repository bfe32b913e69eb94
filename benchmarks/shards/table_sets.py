"""Snapshot sets of a table by what has changed of its rows, beside sets with all rows of the same state.

    python -m benchmarks.shards.table_sets [--rows 5000000] [--shares 0.001,0.01,0.1,0.45] [--rounds 3] [--folder F]

One shard, a real `dbelief ps`, has a table of width 16 with row-wise Adagrad, filled with `--rows` rows; it removes the
least recently pushed beyond a tenth more. Between sets, mini-batches of keys by Zipf's law are pushed until a share of
the rows has changed. The last case has so many new keys too that each bucket removes rows. Each round writes

    what has changed, while there are pushes, and again without any
    all rows, without any pushes since, and again while there are pushes

and times each push, of the same few of the most popular rows. A shard writes all rows after a set that was found to be
damaged, so the set before each of those with all rows is marked as such a one. A second shard restores what has changed
with the rows before it, and all rows; all files are in the page cache. In the last round it writes what it has restored
from changes: exit code 1 where a bit of that differs from the set with all rows. Figures are medians over the rounds,
also of the longest push in each. Sets go to `--folder`, as in `snapshots.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import StoredSegment, read_segments
from dbelief.core.push import Push, Pusher
from dbelief.job.tables import TableSection
from dbelief.rpc import grpc_settings
from dbelief.sparse.table import pack
from dbelief.tools.bench.shards import JOB, Shards

WIDTH, RATE = 16, 0.05
BATCH = 1 << 18
"""Most keys of a mini-batch, repeats among them."""
LEAST = 3
"""Pushes while a set is written, where it is over before."""
LONGEST = ("calm_ms", "push_ms", "full_push_ms")
"""Of the longest push in a round: of these there are maxima over the rounds too."""
MIB = 1 << 20


class Case(NamedTuple):
    """What is pushed between two sets, as shares of the rows: of those that are there, and rows of new keys."""

    share: float
    new: float = 0.0


EVICTING = Case(0.05, 0.14)
"""New keys: somewhat more than the eighth of its rows that a full bucket removes at a time."""


def table_of(rows: int) -> TableSection:
    """The table, as a job file has it."""
    rule = {"name": "row-adagrad", "rate": RATE}
    return TableSection.model_validate({"width": WIDTH, "rule": rule, "evict": {"lru": rows + rows // 10}})


class Pushes:
    """A pusher of rows; keys are numbers, the lowest are the most popular."""

    def __init__(self, shards: Shards, rows: int) -> None:
        (self._table,) = shards.tables
        self._pusher = Pusher(1, 2)
        self._client = shards.client(self._pusher)
        self._versions = np.zeros(len(shards.spans), np.int64)
        self._numbers, self._rng = itertools.count(1), np.random.default_rng(0)
        self._rows, self._next = rows, rows
        self._popular = np.arange(max(1, rows // 5_000))

    def push(self, keys: np.ndarray) -> float:
        """Push gradients of the rows of these keys; the seconds of the push."""
        order, parts = self._table.split(keys)
        gradients = self._rng.standard_normal((keys.size, WIDTH), dtype=np.float32)
        rows = {index: pack(keys[order[own]], gradients[own]) for index, own in parts}
        push = Push(self._pusher, next(self._numbers))
        return timing.seconds(lambda: self._client.push(np.zeros(1, np.float32), self._versions, push, rows=rows))

    def popular(self) -> float:
        """Push the most popular rows, of all buckets; the seconds."""
        return self.push(self._popular)

    def fill(self) -> None:
        """Push each key once, the most popular ones last."""
        for first in reversed(range(0, self._rows, BATCH)):
            self.push(np.arange(first, min(self._rows, first + BATCH)))

    def between_sets(self, case: Case) -> None:
        """Push new keys, and keys by Zipf's law, as many as the case has."""
        stop = self._next + int(case.new * self._rows)
        for first in range(self._next, stop, BATCH):
            self.push(np.arange(first, min(stop, first + BATCH)))
        self._next = stop
        wanted, touched = int(case.share * self._rows), np.zeros(self._rows, np.bool_)
        while np.count_nonzero(touched) < wanted:
            draws = self._rng.random(min(BATCH, 1 + wanted // 2))
            keys = np.unique((self._rows**draws).astype(np.int64) - 1)
            touched[keys] = True
            self.push(keys)

    def during(self, work: Callable[[], object]) -> list[float]:
        """Push the most popular rows until the work is done; the seconds of each push."""
        seconds: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            while not working.done() or len(seconds) < LEAST:
                seconds.append(self.popular())
            working.result()
        return seconds

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class WrittenSet(NamedTuple):
    """A complete set: its id, the bytes and seconds of the shard's part, and the files of earlier sets it needs."""

    set_id: str
    nbytes: int
    seconds: float
    needs: list[str]


class Sets:
    """Sets of a shard, begun and completed as a coordinator does it."""

    def __init__(self, shards: Shards, folder: Path) -> None:
        self._shards, self.stored, self._count = shards, LocalSets(folder), 0

    def write_changes(self) -> WrittenSet:
        """Write the next set, with what has changed since the last one with all rows."""
        written = self._write()
        if not written.needs:
            raise SystemExit(f"set {written.set_id} was to have what has changed, and has all rows: half were pushed")
        return written

    def write_all(self) -> WrittenSet:
        """Write the next set with all rows."""
        if complete := self.stored.complete():
            self.stored.quarantine(complete[-1])
        written = self._write()
        if written.needs:
            raise SystemExit(f"set {written.set_id} was to have all rows, and needs {written.needs[0]}")
        return written

    def _write(self) -> WrittenSet:
        self._count += 1
        set_id = f"{0:012d}-{self._count:04d}"
        self.stored.claim(set_id)
        (reply,) = self._shards.write_parts(self.stored.place(set_id), set_id)
        parts, needs = {reply.manifest: reply.shard_epoch}, list(reply.needs)
        self.stored.commit(set_id, JOB, {"segments": len(self._shards.spans), "parts": parts, "needs": needs})
        return WrittenSet(set_id, reply.bytes, reply.seconds, needs)

    def segments(self, set_id: str) -> Iterator[StoredSegment]:
        """Segments of a set; each is valid until the next iteration."""
        files = self.stored.files(set_id)
        return read_segments(files, set_id, JOB, self._shards.rule[0], self._shards.spans)

    def restore(self, target: Shards, written: WrittenSet) -> dict[str, float]:
        """Restore another shard from a set: its seconds, and the bytes of the files that it needs."""
        earlier = sum((self.stored.where / name).stat().st_size for name in written.needs)
        seconds = target.restore(self.stored.place(written.set_id), written.set_id)
        return {"bytes": written.nbytes + earlier, "s": seconds}

    def changes(self, written: WrittenSet) -> dict[str, int]:
        """Rows that a set of changes has of the buckets, and rows that it names as removed."""
        (manifest,) = self.stored.place(written.set_id).glob("shard-*.json")
        numbers = {"changes/stamps": 0, "changes/removed": 0}
        for row in json.loads(manifest.read_text())["segments"]:
            for name, _, *size in row["vectors"]:
                if name in numbers:
                    numbers[name] += sum(size)
        return {"changed": numbers["changes/stamps"], "removed": numbers["changes/removed"]}


def equal(some: Iterable[StoredSegment], others: Iterable[StoredSegment]) -> bool:
    """Whether segments have the same arrays, bit for bit, after as many pushes."""

    def contents(one: StoredSegment) -> tuple[int, int, dict[str, bytes]]:
        return one.span.index, one.applied, {name: values.tobytes() for name, values in one.arrays.items()}

    return all(contents(one) == contents(other) for one, other in zip(some, others, strict=True))


class Measurement:
    """A shard with the filled table, another that is restored, and their sets."""

    def __init__(self, shards: Shards, spare: Shards, rows: int, folder: Path) -> None:
        self._pushes, self._spare = Pushes(shards, rows), spare
        self._sets, self._restored = Sets(shards, folder / "sets"), Sets(spare, folder / "restored")
        self._pushes.fill()
        self._sets.restore(spare, self._sets.write_all())

    def round(self, case: Case, check: bool) -> dict[str, Any]:
        """Figures of one round; `check`: whether the restored rows are compared."""
        self._pushes.between_sets(case)
        during = self._pushes.during(self._sets.write_changes)
        changes = self._sets.write_changes()
        restored = self._sets.restore(self._spare, changes)
        again = self._restored.write_all() if check else None
        counts = self._sets.changes(changes)
        full = self._sets.write_all()
        restored_full = self._sets.restore(self._spare, full)
        same = equal(self._restored.segments(again.set_id), self._sets.segments(full.set_id)) if again else None
        during_full = self._pushes.during(self._sets.write_all)
        calm = [self._pushes.popular() for _ in during_full]
        self._sets.stored.prune(keep=1)
        self._restored.stored.prune(keep=1)
        return {
            **counts,
            "bytes": changes.nbytes,
            "full_bytes": full.nbytes,
            "s": changes.seconds,
            "full_s": full.seconds,
            "calm_ms": 1e3 * max(calm),
            "push_ms": 1e3 * max(during),
            "full_push_ms": 1e3 * max(during_full),
            "pushes": len(during),
            "full_pushes": len(during_full),
            **{f"restore_{name}": value for name, value in restored.items()},
            **{f"restore_full_{name}": value for name, value in restored_full.items()},
            **({} if same is None else {"equal": same}),
        }

    def close(self) -> None:
        """Close the pusher."""
        self._pushes.close()


def together(case: Case, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """A case's figures: medians, the most that a push took; and whether each comparison found equal rows."""
    numbers = [name for name in rounds[0] if name != "equal"]
    return {
        **case._asdict(),
        **timing.medians(rounds, *numbers),
        **{f"most_{name}": max(row[name] for row in rounds) for name in LONGEST},
        "equal": all(row["equal"] for row in rounds if "equal" in row),
    }


def measure(rows: int, shares: list[float], rounds: int, folder: Path) -> dict[str, Any]:
    """All figures: a row for each share, and one for the case with new keys; and the peak memory of both shards."""
    cases = [Case(share) for share in shares]
    found: dict[Case, list[dict[str, Any]]] = {}
    places = folder / "shard", folder / "spare"
    for place in places:
        place.mkdir()
    with ExitStack() as stack:
        kind: dict[str, Any] = {"rule": "sgd", "tables": {"rows": table_of(rows)}}
        shards, spare = (stack.enter_context(Shards(place, 1, **kind)) for place in places)
        measurement = stack.enter_context(closing(Measurement(shards, spare, rows, folder)))
        for number, case in itertools.chain(timing.interleaved(cases, rounds), ((n, EVICTING) for n in range(rounds))):
            row = measurement.round(case, check=number == rounds - 1)
            found.setdefault(case, []).append(row)
            report.progress({**case._asdict(), "round": number, **row})
        peaks = {"peak_mib": shards.resident_mib(), "restored_peak_mib": spare.resident_mib()}
    medians = [together(case, found[case]) for case in (*cases, EVICTING)]
    return {"table_rows": rows, "rounds": rounds, **peaks, "rows": medians}


def show(found: dict[str, Any]) -> None:
    """Print the figures as a table, and as JSON."""
    table = Table("pushed", "rows", "removed", "MiB", "s", "longest push, ms", "restored, MiB", "s", "equal")
    table.title = f"{found['table_rows']:,} rows: what has changed / all rows (/ pushes without a set)"
    for row in found["rows"]:
        pushed = f"{100 * row['share']:g} %" + (f", {100 * row['new']:g} % new" if row["new"] else "")
        sizes = [f"{row[name] / MIB:.3g}" for name in ("bytes", "full_bytes", "restore_bytes", "restore_full_bytes")]
        times = [f"{row[name]:.2f}" for name in ("s", "full_s", "restore_s", "restore_full_s")]
        pauses = [f"{row[name]:.0f}" for name in ("push_ms", "full_push_ms", "calm_ms")]
        counts = [f"{row[name]:,.0f}" for name in ("changed", "removed")]
        pairs = [" / ".join(part) for part in (sizes[:2], times[:2], pauses, sizes[2:], times[2:])]
        table.add_row(pushed, *counts, *pairs, "yes" if row["equal"] else "NO")
    report.show(table, found, width=130)


def shares_in(text: str) -> list[float]:
    """Shares with commas between."""
    shares = [float(part) for part in text.split(",")]
    if not all(0 < share < 0.5 for share in shares):
        raise argparse.ArgumentTypeError(f"{text}: each must be above 0, and below 0.5: beyond it sets have all rows")
    return shares


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--shares", type=shares_in, default=[0.001, 0.01, 0.1, 0.45], help="of the rows, below 0.5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where a folder for the sets is made")
    words = parser.parse_args()
    if words.folder is not None and not words.folder.is_dir():
        parser.error(f"--folder {words.folder}: there is no such folder")
    grpc_settings.prepare_process()
    with tempfile.TemporaryDirectory(prefix="dbelief-", dir=words.folder) as folder:
        found = measure(words.rows, words.shares, words.rounds, Path(folder))
    show(found)
    if different := [row["share"] for row in found["rows"] if not row["equal"]]:
        raise SystemExit(f"rows that were restored from changes differ from all rows: shares {different}")


if __name__ == "__main__":
    main()
