"""Results of a complete scan of files, kept on disk: one process of a machine scans, later ones read the result.

A result is kept under a digest of the files' names, sizes and times, or tags, and of what was asked for, in the user's
cache folder (`scans` in it). Where that cannot be written, each process scans.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dbelief.errors import WriteFailed
from dbelief.process.atomic_file import write_whole

from .cache_folder import locked, own_folder
from .data_file import DataFile

log = logging.getLogger(__name__)

FORMAT = 2
LOCK_S = 600.0
"""Seconds that a process waits for the scan of another one before it scans by itself."""


def scanned(files: Sequence[DataFile], asked: Mapping[str, Any], scan: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The kept result of a scan, or a new one.

    Parameters
    ----------
    files
        What is scanned.
    asked
        What is computed, and from what parts; JSON must be able to hold it.
    scan
        Returns what JSON can hold.
    """
    if not all(file.stamp for file in files):  # of a pipe, for example, nothing says that it is the same
        return scan()
    key = [FORMAT, asked, [[file.where, file.size, file.stamp] for file in files]]
    try:
        folder = own_folder("scans")
    except OSError:
        return scan()
    path = folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()}.json"
    with _locked(path):
        with suppress(OSError, ValueError):
            kept: dict[str, Any] = json.loads(path.read_bytes())
            return kept
        result = scan()
        with suppress(WriteFailed):
            write_whole(path, json.dumps(result).encode())
    return result


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within the `with` block no other process scans for this result, where the folder can be locked."""
    try:
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        if not locked(descriptor, fcntl.LOCK_EX, LOCK_S):
            log.warning(f"another process has scanned the data for {LOCK_S:g} s: this one scans it too")
        yield
    finally:
        os.close(descriptor)
