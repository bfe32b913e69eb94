"""`dbelief bench kernels` on the stand-in for CuPy: it runs, and says what it ran on. Its times say nothing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.tools.bench import kernels
from tests.device.standin.cupy import standing_in

SMALL = "--tiles", "5", "4", "--window", "3", "--depth", "4", "--neurons", "3", "--batch", "8", "--device", "cuda"


@pytest.mark.parametrize("math", ["float32", "tf32", "bf16"])
def test_every_kernel_is_measured(math: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.SQUARE, "cupy", 64)
    with standing_in() as machine:
        done = CliRunner().invoke(main, ["bench", "kernels", *SMALL, "--math", math, "--json", "--rounds", "2"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["device"], found["rows"], found["batch"]) == ("Stand-in 0", 5, 8)
    assert all(found[f"{name}_x"] > 0 for name in kernels.NAMES)
    assert machine.stalls == 0
