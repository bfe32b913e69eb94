"""Cost of a snapshot set: pushes while it is written, its duration, and its memory.

    python -m benchmarks.shards.snapshots [--mib 64] [--rounds 40] [--folder FOLDER]

One shard, a real `dbelief ps`, holds a vector of `--mib` with Adagrad's state beside it. One worker, a process too,
pushes all of it, another only its last segment; they take turns. Each round has pushes of both kinds while a set is
written, as many without, and a set without pushes beside it. The times of pushes over all rounds are reported: p50,
p99, and the longest, which is the longest pause of training. Sets go to `--folder`, which should be on
the disk that they would be on; the seconds for each GiB of one are held against those of its parts there: one copy,
the checksum, and a plain file that is written and made durable.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.rpc import grpc_settings
from dbelief.tools.bench.peers import Peer
from dbelief.tools.bench.shards import Shards
from dbelief.tools.bench.workers import worker

KINDS = ("all of it", "one segment")
WARM_UP = 2
"""Rounds that are not counted."""
LEAST = 3
"""Pushes of a kind in a round, where a set is over before."""


def push(peer: Peer) -> float:
    """One push; its seconds."""
    return float(peer.ask({"turns": ["push"], "times": 1})["seconds"][0])


class Sets:
    """Sets that are written one after another, each in the place of the one before the last."""

    def __init__(self, shards: Shards, folder: Path) -> None:
        self._shards, self._folder, self._number = shards, folder, 0

    def write(self) -> float:
        """Write the next one; its seconds for each GiB."""
        self._number += 1
        size, seconds = self._shards.snapshot(self._folder / str(self._number), str(self._number))
        shutil.rmtree(self._folder / str(self._number - 1), ignore_errors=True)
        return seconds / size * (1 << 30)


def rounds(shards: Shards, peers: dict[str, Peer], count: int, folder: Path) -> Iterator[tuple[str, str, list[float]]]:
    """(kind of push, whether a set was written, seconds), and of sets the seconds for each GiB."""
    sets = Sets(shards, folder)
    with ThreadPoolExecutor(1) as writer:
        for number in range(WARM_UP + count):
            found: list[tuple[str, str, list[float]]] = [("set", "alone", [sets.write()])]
            for kind in KINDS if number % 2 else KINDS[::-1]:
                peer = peers[kind]
                during: list[float] = []
                writing = writer.submit(sets.write)
                while not writing.done() or len(during) < LEAST:
                    during.append(push(peer))
                found.append(("set", kind, [writing.result()]))
                found.append((kind, "set", during))
                found.append((kind, "calm", [push(peer) for _ in during]))
            if number >= WARM_UP:
                yield from found


def parts(size: int, folder: Path) -> dict[str, float]:
    """Seconds for each GiB of the parts of writing a set, each alone."""
    source = np.random.default_rng(0).standard_normal(size // 4, np.float32)
    target = np.ones_like(source)

    def write() -> None:
        with open(folder / "plain", "wb") as file:
            file.write(source.data)
            file.flush()
            os.fsync(file.fileno())

    works = {"copy": lambda: np.copyto(target, source), "checksum": lambda: zlib.crc32(source.data), "write": write}
    per_gib = (1 << 30) / size
    found = {name: per_gib * statistics.median(timing.seconds(work) for _ in range(5)) for name, work in works.items()}
    (folder / "plain").unlink()
    return found


def measure(mib: int, count: int, folder: Path) -> dict[str, Any]:
    """All figures."""
    with ExitStack() as stack:
        shards = stack.enter_context(Shards(folder, mib * (1 << 20) // 4))
        last = shards.spans[-1]
        parts_of = {"all of it": None, "one segment": (last.start, last.stop)}
        peers = {kind: worker(stack, folder, shards, n, part) for n, (kind, part) in enumerate(parts_of.items())}
        for peer in peers.values():
            for _ in range(10):
                push(peer)
        before_mib = shards.resident_mib()
        found: dict[tuple[str, str], list[float]] = {}
        for kind, how, values in rounds(shards, peers, count, folder):
            found.setdefault((kind, how), []).extend(values)
        peak_mib = shards.resident_mib()
    pushes = [
        {
            "kind": kind,
            "set": how == "set",
            "during": "a set" if how == "set" else "no set",
            "pushes": len(found[kind, how]),
            "p50_ms": float(np.percentile(found[kind, how], 50)) * 1e3,
            "p99_ms": float(np.percentile(found[kind, how], 99)) * 1e3,
            "longest_ms": max(found[kind, how]) * 1e3,
        }
        for kind in KINDS
        for how in ("calm", "set")
    ]
    return {
        "mib": mib,
        "rounds": count,
        "cores": os.cpu_count(),
        "pushes": pushes,
        "set_s_per_gib": {how: statistics.median(found["set", how]) for how in ("alone", *KINDS)},
        "parts_s_per_gib": parts(mib << 20, folder),
        "vectors_mib": 2 * mib,
        "before_mib": before_mib,
        "peak_mib": peak_mib,
    }


def show(found: dict[str, Any]) -> None:
    """Print the figures as a table, and as JSON."""
    table = Table("pushed", "while there is written", "pushes", "p50 ms", "p99 ms", "longest ms")
    table.title = f"{found['mib']} MiB and Adagrad's state, {found['rounds']} rounds"
    for row in found["pushes"]:
        times = (f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "longest_ms"))
        table.add_row(row["kind"], row["during"], str(row["pushes"]), *times)
    console = Console(stderr=True, width=120)
    sets = ", ".join(f"{how} {s:.2f}" for how, s in found["set_s_per_gib"].items())
    alone = ", ".join(f"{name} {s:.2f}" for name, s in found["parts_s_per_gib"].items())
    console.print(f"seconds for each GiB of a set: {sets}; of its parts: {alone}")
    console.print(
        f"memory of the shard, MiB: vectors {found['vectors_mib']}, at most before the first set "
        f"{found['before_mib']:.0f}, and after the last {found['peak_mib']:.0f}"
    )
    report.show(table, found, width=120)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--mib", type=int, default=64, help="the vector; Adagrad's state takes as much again")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--folder", type=Path, help="where a folder for the sets is made; the system's for temporary files"
    )
    arguments = parser.parse_args()
    if arguments.folder is not None and not arguments.folder.is_dir():
        parser.error(f"--folder {arguments.folder}: there is no such folder")
    grpc_settings.prepare_process()
    with tempfile.TemporaryDirectory(prefix="dbelief-", dir=arguments.folder) as folder:
        show(measure(arguments.mib, arguments.rounds, Path(folder)))


if __name__ == "__main__":
    main()
