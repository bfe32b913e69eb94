"""Every test of faults ends with the same checks of what may not be left."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.invariants import MARK, left_files, marked_processes
from tests.faults.shards import Shards

GRACE_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a mark and a temporary folder of its own; at its end no process and no file may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:  # short: socket paths end at 107 bytes
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        yield
        until_s = time.monotonic() + GRACE_S
        while (processes := marked_processes(mark)) and time.monotonic() < until_s:
            time.sleep(0.02)
        for pid in processes:  # so that the next test is not disturbed
            os.kill(pid, signal.SIGKILL)
        files = left_files(Path(temporary), tmp_path)
    assert not processes, f"still running after {GRACE_S:g} s: {processes}"
    assert not files, f"left behind: {files}"


@pytest.fixture
def serve() -> Iterator[Callable[..., Shards]]:
    """Give serve(runs, ...): `Shards`, closed at the end of the test."""
    served: list[Shards] = []

    def begin(*arguments: Any, **options: Any) -> Shards:
        served.append(Shards(*arguments, **options))
        return served[-1]

    yield begin
    for shards in served:
        shards.close()
