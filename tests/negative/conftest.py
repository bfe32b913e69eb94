"""A folder of its own for each wrong input, and the programs under the names that all tests know them by."""

from __future__ import annotations

import functools
import socket
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dbelief.cli import main
from dbelief.registry.server import RedisRegistry
from tests.negative.harness import Wrong, check

PROGRAMS = ("ps_server", "worker", "coordinator")


@pytest.fixture
def assert_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Wrong], None]]:
    """Give assert_refused(wrong): see `check`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for name in ("DBELIEF_DEBUG", "DBELIEF_LISTEN", "DBELIEF_SET"):
        monkeypatch.delenv(name, raising=False)
    points = {p.removesuffix("_server"): EntryPoint(p, f"{p}.command:command", main.GROUP) for p in PROGRAMS}
    points["bench"] = EntryPoint("bench", "dbelief.tools.bench.command:command", main.GROUP)
    monkeypatch.setattr(main.Commands, "_programs", staticmethod(lambda: points))
    for module in ("dbelief.rpc.grpc_settings", *(f"{program}.command" for program in PROGRAMS)):
        for name in ("prepare_process", "limit_threads"):  # what they set would last for all tests
            monkeypatch.setattr(f"{module}.{name}", lambda *_: None, raising=False)
    impatient = functools.partial(RedisRegistry, patience_s=0.1)
    monkeypatch.setattr("dbelief.registry.server.RedisRegistry", impatient)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield lambda wrong: check(wrong, tmp_path, f"127.0.0.1:{mute.getsockname()[1]}")
