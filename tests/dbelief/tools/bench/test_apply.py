import itertools
import json
import math

import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.optim import RULES, make_rule
from dbelief.tools.bench import apply
from dbelief.tools.bench.apply import TORCH, bytes_each


def bench(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["bench", "apply", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("threads", ["1", "3"])
def test_every_rule_is_measured(threads: str) -> None:
    found = json.loads(bench("--json", "--parameters", "20k", "--rounds", "2", "--threads", threads))
    assert (found["parameters"], found["rounds"], found["threads"]) == (20_000, 2, int(threads))
    assert all(found[f"{name}_x"] > 0 and math.isfinite(found[f"{name}_seconds"]) for name in RULES)


def test_the_ratios_are_of_bytes_per_second_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of (triad, rule) by round, the first not counted: the machine is twice as slow in the last one."""
    seconds = itertools.cycle([9.0, 1.0, 2.0, 1.0, 2.0, 1.0, 4.0, 2.0])
    monkeypatch.setattr(apply, "_seconds", lambda turn: next(seconds))
    monkeypatch.setattr(apply, "_torch_step", lambda *_: None)
    found = json.loads(bench("--json", "--parameters", "3000", "--rounds", "3"))
    assert (found["triad_bytes"], found["triad_seconds"]) == (12, 2.0)
    for name in RULES:
        assert found[f"{name}_seconds"] == 1.0
        assert found[f"{name}_x"] == pytest.approx(found[f"{name}_bytes"] / 12 * 2)


def test_bytes_by_hand() -> None:
    counted = {name: bytes_each(make_rule(name, {})) for name in RULES}
    one_state = dict.fromkeys(("momentum", "caffe-momentum", "nesterov", "adagrad"), 20)
    assert counted == {"sgd": 12, **one_state, "adam": 28, "adamw": 28, "ftrl": 28}


def test_the_table_names_every_rule() -> None:
    shown = bench("--parameters", "2k", "--rounds", "1")
    assert all(name in shown for name in RULES)


@pytest.mark.parametrize("text", ["0", "M", "1.5M", "-3", "many"])
def test_a_wrong_count_is_refused(text: str) -> None:
    done = CliRunner().invoke(main, ["bench", "apply", "--parameters", text])
    assert done.exit_code == 2
    assert "must be a whole number above 0" in done.output


@pytest.mark.torch
def test_torch_has_every_rule() -> None:
    pytest.importorskip("torch")
    found = json.loads(bench("--json", "--parameters", "2k", "--rounds", "1"))
    assert all(found[f"{name}_over_torch"] > 0 for name in TORCH)


def test_every_rule_but_ftrl_has_its_like_in_torch() -> None:
    assert set(TORCH) == set(RULES) - {"ftrl"}
