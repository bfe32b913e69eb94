"""Speed of a shard's upload of a snapshot, beside the library's own multipart upload of the same bytes.

    python -m benchmarks.storage.snapshot_speed [--mib 256] [--rounds 5] [--url s3://BUCKET/PREFIX]

A vector of `--mib` in segments of 1 MiB is uploaded as a shard's part of a set: data with checksums, and its manifest,
in parts of 8 MiB from memory. In turn the same bytes, which are in memory already, are uploaded by s3fs (`pipe_file`),
in parts of the same size. Without `--url`, to a server of moto in a process of its own, whose speed limits both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from rich.table import Table

from benchmarks.harness import extras, options, report, timing
from benchmarks.harness.runs import free_port
from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.checkpoint.shard_file import StoredSegment, write_shard
from dbelief.core.layout import make_segments
from dbelief.storage.object_store import connect
from dbelief.storage.upload import AT_ONCE, PART
from dbelief.url import Url, parse_url

SET = "000000000000-0001"
ABOUT = {"job": "speed", "set": SET, "rule": "sgd", "shard_epoch": 1}


@contextmanager
def server() -> Iterator[Url]:
    """A server of moto in a process of its own, with a bucket."""
    import boto3

    port = free_port()
    named = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with mock.patch.dict(os.environ, {**named, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until_s = time.monotonic() + 60
            while True:
                try:
                    boto3.client("s3").create_bucket(Bucket="bucket")
                    break
                except Exception:
                    if time.monotonic() > until_s:
                        raise
                    time.sleep(0.2)
            yield parse_url("s3://bucket/speed")
        finally:
            process.kill()
            process.wait()


def measure(url: Url, mib: int, rounds: int) -> dict[str, Any]:
    """MB/s of both: all rounds, and a row of medians each."""
    import s3fs

    vector = np.random.default_rng(0).standard_normal(mib << 18, np.float32)
    spans = make_segments([(0, len(vector))], 1 << 18)
    table = [(span, {"w": (vector.dtype, span.length)}) for span in spans]
    store, sets = connect(url), ObjectSets(connect(url), url / "snapshots")
    files, plain = s3fs.S3FileSystem(use_listings_cache=False), vector.tobytes()

    def shard() -> None:
        sets.claim(SET)
        place = sets.files_at(sets.place(SET))
        assert place is not None
        segments = (StoredSegment(span, 1, 1, 0, 0, {}, {"w": vector[span.start : span.stop]}) for span in spans)
        write_shard(place, 0, ABOUT, table, segments)
        sets.abort(SET)

    def library() -> None:
        files.pipe_file(url / "plain", plain, chunksize=PART, max_concurrency=AT_ONCE)
        store.delete([url / "plain"])

    found: dict[str, list[float]] = {"shard": [], "library": []}
    works = {"shard": shard, "library": library}
    for number in range(rounds + 1):
        for name in works if number % 2 else reversed(works):
            seconds = timing.seconds(works[name])
            if number:  # the first round is a warm-up
                found[name].append(len(plain) / seconds / 1e6)
    medians = {name: statistics.median(row) for name, row in found.items()}
    rows = [
        {
            "upload": name,
            "median": medians[name],
            "least": min(row),
            "most": max(row),
            "over_library": medians[name] / medians["library"],
            "mb_per_s": row,
        }
        for name, row in found.items()
    ]
    return {"mib": mib, "rows": rows}


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", type=parse_url, help="a prefix in a store that the environment names")
    arguments = parser.parse_args()
    extras.needs_s3()
    if arguments.url is not None:
        found = measure(arguments.url, arguments.mib, arguments.rounds)
    else:
        with server() as url:
            found = measure(url, arguments.mib, arguments.rounds)
    table = Table("upload", "MB/s, median", "least", "most", "over the library's")
    for row in found["rows"]:
        speeds = (f"{row[name]:.0f}" for name in ("median", "least", "most"))
        table.add_row(row["upload"], *speeds, f"{row['over_library']:.2f}")
    report.show(table, found)


if __name__ == "__main__":
    main()
