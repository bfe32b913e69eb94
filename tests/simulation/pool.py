"""Many seeds in several processes, each once: outcomes go to a file, and those that are in it are not made again."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def each_seed(
    seeds: Sequence[int],
    call: Callable[[int], T],
    processes: int,
    results: Path | None,
    read: Callable[[dict[str, Any]], T],
) -> Iterator[T]:
    """Yield the outcome of each seed, those in the file `results` first.

    Parameters
    ----------
    call
        Returns the outcome of a seed, a dataclass with a field `seed`; called in other processes.
    results
        File of outcomes, a line of JSON each; new ones are appended.
    read
        Returns the outcome with these fields.
    """
    lines = results.read_text().splitlines() if results is not None and results.is_file() else []
    known = {fields["seed"]: read(fields) for fields in map(json.loads, lines)}
    yield from (known[seed] for seed in seeds if seed in known)
    rest = [seed for seed in seeds if seed not in known]
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _prepare)
    try:
        for outcome in pool.map(call, rest, chunksize=4):
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")  # type: ignore[call-overload]  # a dataclass
            yield outcome
    finally:  # also where the caller wants no further outcome
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Prepare a process that runs seeds: cycles are freed between them only, never at a moment of the machine's."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()
