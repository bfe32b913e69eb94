"""dbelief observed from outside, in the form of the trainers' reports: its workers' counters, and its snapshot sets."""

from __future__ import annotations

import ctypes
import http.client
import json
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.faults.deployment import SAMPLES
from benchmarks.peers.evaluation import HIDDEN, INPUTS, SIZES
from benchmarks.peers.place import Place
from dbelief.checkpoint.model_tensors import read_tensors

LOOKS_PER_S = 20.0
PARAMETERS = "/w"
"""Behind the segment's number, in names of a shard's file."""
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""


class Watch:
    """Writes the reports while the block runs."""

    def __init__(self, place: Place) -> None:
        self._place, self._ended = place, threading.Event()
        self._threads = [threading.Thread(target=self._worker, args=(rank,)) for rank in range(place.workers)]
        self._threads.append(threading.Thread(target=self._sets))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _worker(self, rank: int) -> None:
        name, place = f"worker-{rank}", self._place
        enter(place.inside(1 + rank))
        counted: dict[str, int] = {}
        while not self._ended.wait(1 / LOOKS_PER_S):
            source = f"{name}.{place.supervisor.units[name].process.pid}"
            value = counter(place.port(f"metrics-{rank}"))
            before = counted.get(source, 0)
            if value is not None and value > before:
                line = {"at": time.monotonic(), "trained": [source, before + 1, value]}
                with open(place.folder / "reports" / f"{source}.jsonl", "a") as file:
                    file.write(json.dumps(line) + "\n")
                counted[source] = value

    def _sets(self) -> None:
        """Copy the parameters of each snapshot set; one that is removed meanwhile is left out."""
        seen: set[Path] = set()
        while not self._ended.wait(1 / LOOKS_PER_S):
            for path in set(self._place.folder.glob("peers/snapshots/*/set.json")) - seen:
                seen.add(path)
                try:
                    pieces = read_tensors(path.with_name("shard-0.safetensors"))
                except (OSError, ValueError):
                    continue
                names = sorted((name for name in pieces if name.endswith(PARAMETERS)), key=segment)
                flat = np.concatenate([pieces[name] for name in names])
                np.save(self._place.folder / "models" / f"{time.monotonic():.3f}.npy", torch_order(flat))


def segment(name: str) -> int:
    """Number of the segment in the name of a tensor of a shard's file."""
    return int(name.split("/")[0])


def enter(prefix: list[str]) -> None:
    """Move this thread to the network namespace of a command's prefix."""
    if prefix:
        with open(f"/run/netns/{prefix[-1]}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")


def counter(port: int) -> int | None:
    """A worker's count of samples; None while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", f"/metrics?name[]={SAMPLES}")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return next((int(float(line.split()[1])) for line in lines if line.startswith(SAMPLES)), None)


def torch_order(flat: np.ndarray) -> np.ndarray:
    """Parameters whose weights have a row for each input, as torch has them."""
    w1, b1, w2, b2 = np.split(flat, np.cumsum(SIZES)[:-1])
    return np.concatenate([w1.reshape(INPUTS, HIDDEN).T.ravel(), b1, w2.reshape(HIDDEN, -1).T.ravel(), b2])
