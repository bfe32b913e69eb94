"""Bytes on the wire of a step with tables, over what its mini-batch touches: the recommendation model of the examples.

    python -m benchmarks.wire.row_bytes [--batches 64,512,4096] [--shards 2]

A step of `examples/scripts/dlrm_job.py` touches the distinct keys of its mini-batch and the dense numbers: it has to
send 8 bytes for each key that it reads, 8 and 4 for each number of the row for each key that it pushes, and 4 for each
dense number; it has to receive 4 for each number of the rows and each dense number. (The model's sums of whole numbers
have 8 each way.) Beside that stands what the kernel counts at all TCP connections of the worker, without shared memory,
those to the coordinator too: protobuf, the framing of direct streams and of gRPC, reports and heartbeats; without the
headers of TCP and IP.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, options, report, runs
from benchmarks.harness.extras import needs_torch
from benchmarks.workers.dlrm import SCRIPTS, job_of

WARM, STEPS = 5, 25
"""Steps until connections are there, and steps that are counted."""
SCRIPT = """
import json
import sys

from torch import nn, optim
from torch.utils.data import DataLoader

import dbelief

sys.path[:0] = [{root!r}, {scripts!r}]
import dlrm_job
from benchmarks.harness.tcp_bytes import tcp_bytes

with dbelief.join() as job:
    dlrm_job.job = job
    train, model = dlrm_job.Clicks({samples}, 0), dlrm_job.Dlrm()
    sync = dbelief.torch.Sync(job, model, optim.Adagrad(model.parameters(), lr=0.02))
    dense = 8 * sum(own.numel() for own in model.parameters()) + 16 * sum(own.numel() for own in model.buffers())
    steps, before = [], None
    for numbers, keys, clicks in DataLoader(train, batch_sampler=job.sampler(train, {batch}), collate_fn=tuple):
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, keys), clicks)
        loss.backward()
        distinct = sum(own.keys.size for table in model.tables for own in table.pulled)
        touched = dense + distinct * (8 + 8 + 2 * 4 * dlrm_job.WIDTH)
        sync.step(loss, samples=len(clicks))
        now = tcp_bytes()
        if before is not None:
            steps.append((distinct, touched, now.sent - before.sent, now.received - before.received))
        before = now
with open("steps.json", "w") as file:
    json.dump(steps, file)
"""


def measured(batch: int, shards: int) -> dict[str, Any]:
    """Figures of a mini-batch of so many samples: means over the steps, and the ratio of their sums."""
    with tempfile.TemporaryDirectory() as text:
        folder, samples = Path(text), batch * (WARM + STEPS)
        fields = job_of(samples, 1, 0) | {
            "shards": shards,
            "evaluate": {"every": 10**9},
            "snapshots": {"every_s": None},
        }
        fields["data"] = {"source": "script", "train": samples}
        fields["strategy"]["batch"] = batch
        (folder / "job.yaml").write_text(json.dumps(fields))
        made = SCRIPT.format(root=str(checkout.ROOT), scripts=str(SCRIPTS), samples=samples, batch=batch)
        (folder / "step.py").write_text(made)
        runs.dbelief(folder, "run", "--quiet", "--no-shared-memory", "--job", "job.yaml", "--workers", "1", "step.py")
        steps = json.loads((folder / "steps.json").read_text())[WARM - 1 :]
    if len(steps) < STEPS:
        raise SystemExit(f"{len(steps)} steps were counted, not {STEPS}: the script was started again")
    distinct, touched, sent, received = (statistics.mean(column) for column in zip(*steps, strict=True))
    ratio = (sent + received) / touched
    return {
        "batch": batch,
        "shards": shards,
        "distinct_keys": distinct,
        "touched": touched,
        "sent": sent,
        "received": received,
        "x": ratio,
    }


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--batches", type=options.numbers, default=[64, 512, 4096], help="samples of a mini-batch")
    parser.add_argument("--shards", type=int, default=2)
    words = parser.parse_args()
    needs_torch()
    table, rows = Table("samples", "distinct keys", "touched, bytes", "sent", "received", "over what is touched"), []
    for batch in words.batches:
        row = measured(batch, words.shards)
        rows.append(row)
        report.progress(row)
        counts = (row[name] for name in ("distinct_keys", "touched", "sent", "received"))
        table.add_row(str(batch), *(f"{count:,.0f}" for count in counts), f"{row['x']:.3f}")
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
