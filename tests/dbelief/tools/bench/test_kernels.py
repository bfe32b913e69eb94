import itertools
import json

import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.tools.bench import kernels

SMALL = "--tiles", "5", "4", "--window", "3", "--depth", "2", "--neurons", "3", "--batch", "8", "--device", "cpu"


def bench(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["bench", "kernels", *SMALL, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_kernel_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.SQUARE, "numpy", 64)
    found = json.loads(bench("--json", "--rounds", "2", "--threads", "2"))
    assert (found["device"], found["rows"], found["columns"], found["batch"]) == ("cpu", 5, 4, 8)
    assert found["tall_x"] == 1
    assert all(found[f"{name}_{figure}"] > 0 for name in kernels.NAMES for figure in ("x", "seconds", "of_roof"))


def test_ratios_are_of_operations_per_second_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the eight turns by round, the first not counted: the machine is twice as slow in the last one."""
    quick = [1.0, 0.5, 1e-9, 2.0, 1.25, 1.0, 2.0, 0.1]
    seconds = itertools.chain([9.0] * 8, quick, quick, [2 * one for one in quick])
    monkeypatch.setattr(kernels, "_seconds", lambda *_: next(seconds))
    monkeypatch.setitem(kernels.SQUARE, "numpy", 8)
    found = json.loads(bench("--json", "--rounds", "3"))
    operations = 2 * 3 * 2 * 3 * 18 * 8  # two for each of the weights, [3][2][3][18], and each sample
    assert [found[f"{name}_x"] for name in ("wx", "wty", "dxt", "dxt2")] == pytest.approx([0.5, 0.8, 1.0, 1.0])
    assert found["wx_gflops"] == pytest.approx(operations / 2.0 / 1e9)
    assert found["wx_of_roof"] == pytest.approx(operations / (2 * 8**3 / 0.5) / 2.0)


def test_the_table_names_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.SQUARE, "numpy", 64)
    shown = bench("--rounds", "1")
    assert all(name in shown for name in kernels.NAMES.values())


def test_a_window_that_does_not_fit_is_refused() -> None:
    done = CliRunner().invoke(main, ["bench", "kernels", *SMALL, "--window", "5"])
    assert done.exit_code == 2
    assert "must fit into 5 x 4 tiles" in done.output


def test_unsupported_math_is_refused() -> None:
    done = CliRunner().invoke(main, ["bench", "kernels", *SMALL, "--math", "bf16"])
    assert done.exit_code == 2
    assert "--math bf16: the CPU multiplies in float32 alone" in done.output
