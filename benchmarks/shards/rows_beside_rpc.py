"""Rows that trainers pull and push a second: a job with a table, and beside it a parameter server of torch RPC.

    python -m benchmarks.shards.rows_beside_rpc [--rounds 5] [--trainers 1,2] [--rows 2000000] [--steps 1000]

A trainer's mini-batch has 13,312 keys, drawn by Zipf's law: those of 512 samples with 26 columns. It gets their rows,
of width 16, computes a loss of them, and its gradient steps the rows by Adagrad; a row counts once in each mini-batch.
The job has one shard, and the table 8 buckets; its trainers are scripts with `dbelief.torch.EmbeddingBag` and
`sync.step`. "Ahead": they begin to pull the rows of the next mini-batch while they compute. torch RPC has one server,
and two ways (`rows_peer.py`): as in torch's tutorials, and with the distinct keys only. All have the same keys and one
thread in each process, and take turns in every round. Each transport is compared with itself: shared memory, which both
choose by themselves on one host, and TCP over loopback.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, options, report, runs, timing
from benchmarks.harness.extras import needs_torch

PEER = Path(__file__).with_name("rows_peer.py")
OURS, AHEAD, PEERS = "dbelief", "ahead", ("autograd", "distinct")
SHARED, TCP = "shared memory", "TCP"
WAYS = [(OURS, SHARED), (AHEAD, SHARED), *((one, by) for by in (SHARED, TCP) for one in PEERS), (OURS, TCP)]
BATCH = 512
SCRIPT = """
import json
import sys
from pathlib import Path

import torch

import dbelief

sys.path.insert(0, {root!r})
from benchmarks.shards.rows_peer import Clock, Drawn


class Rows(torch.nn.Module):
    def __init__(self, job):
        super().__init__()
        self.bag = dbelief.torch.EmbeddingBag(job, "rows")
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, keys):
        return self.bag(keys) * self.scale


here = Path.cwd()
with dbelief.join() as job:
    model = Rows(job)
    sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=0.0))
    drawn = Drawn({rows}, job.replica)  # which is known once it has joined
    clock = Clock(drawn, here, job.replica, {trainers})
    for samples in job.sampler(range({samples}), batch_size={batch}):
        loss = drawn.loss(model(drawn.keys(clock.begin_step())))
        if {ahead}:
            model.bag.prefetch(drawn.keys(clock.steps))
        loss.backward()
        sync.step(loss, samples=len(samples))
    (here / f"rate-{{job.replica}}.json").write_text(json.dumps([clock.steps, clock.rows_per_s()]))
"""


def job_of(samples: int) -> dict[str, Any]:
    """The job file."""
    rule = {"name": "adagrad", "rate": 0.05, "eps": 1e-10}
    # Small leases: the first trainer waits for the others to warm up, and they need samples for that.
    sizes = {"batch": BATCH, "lease": 16 * BATCH}
    strategy = {"name": "downpour", **sizes, "rule": {"name": "sgd", "rate": 1e-9}, "warm_start": None}
    return {
        "name": "rows",
        "model": {"source": "script"},
        "data": {"source": "script", "train": samples},
        "strategy": strategy,
        "limits": {"epochs": 1},
        "snapshots": {"every_s": None},
        "tables": {"rows": {"width": 16, "rule": rule, "buckets": 8}},
    }


def ours(rows: int, trainers: int, steps: int, ahead: bool, by: str = SHARED) -> float:
    """Rows/s of the trainers of a job; `ahead`: they begin to pull a mini-batch's rows before the step before it."""
    with tempfile.TemporaryDirectory() as text:
        folder, samples = Path(text), trainers * steps * BATCH
        (folder / "job.yaml").write_text(json.dumps(job_of(samples)))
        sizes = {"rows": rows, "trainers": trainers, "samples": samples, "batch": BATCH, "ahead": ahead}
        (folder / "rows.py").write_text(SCRIPT.format(root=str(checkout.ROOT), **sizes))
        memory = "--shared-memory" if by == SHARED else "--no-shared-memory"
        runs.dbelief(folder, "run", "--quiet", memory, "--job", "job.yaml", "--workers", str(trainers), "rows.py")
        found = [json.loads(file.read_text()) for file in folder.glob("rate-*.json")]
    if sum(done for done, _ in found) < trainers * steps:
        raise SystemExit(f"{len(found)} trainers with {found}, not {trainers} with {steps} steps each")
    return float(sum(rate for _, rate in found))


def peer(way: str, by: str, rows: int, trainers: int, steps: int) -> float:
    """The same of a way and transport of `rows_peer.py`."""
    words = [sys.executable, str(PEER), way, by, *map(str, (rows, trainers, steps))]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{way} failed: {ended.stderr[-2000:]}")
    return float(json.loads(ended.stdout.splitlines()[-1])["rows_per_s"])


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trainers", type=options.numbers, default=[1, 2])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the table")
    parser.add_argument("--steps", type=int, default=1000, help="of a trainer; the first 32 are not counted")
    words = parser.parse_args()
    needs_torch()
    table, medians = Table("trainers", "way", "by", "rows/s", "dbelief over it", "of the rounds"), []
    for trainers in words.trainers:
        rounds: list[dict[tuple[str, str], float]] = [{} for _ in range(words.rounds)]
        for number, (way, by) in timing.interleaved(WAYS, words.rounds):
            sizes = words.rows, trainers, words.steps
            rate = peer(way, by, *sizes) if way in PEERS else ours(*sizes, way == AHEAD, by)
            rounds[number][way, by] = rate
            report.progress({"trainers": trainers, "round": number, "way": way, "by": by, "rows_per_s": rate})
        for way, by in WAYS:
            over = sorted(row[OURS, by] / row[way, by] for row in rounds)
            rate, ratio = (statistics.median(found) for found in ([row[way, by] for row in rounds], over))
            medians.append({"trainers": trainers, "way": way, "by": by, "rows_per_s": rate, "x": ratio, "rounds": over})
            table.add_row(str(trainers), way, by, f"{rate:,.0f}", f"{ratio:.2f}", f"{over[0]:.2f} to {over[-1]:.2f}")
    report.show(table, {"rows": medians})


if __name__ == "__main__":
    main()
