"""Curves of papers: what a comparison sums up, what is fitted, and simulated steps against the papers' formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulate import papers
from benchmarks.simulate.published import decoupled_diloco, distbelief, elastic, firecaffe
from benchmarks.simulate.published.comparison import Claim, Comparison, Point


def comparison(*points: Point, claims: tuple[Claim, ...] = ()) -> Comparison:
    return Comparison("one", "A paper", "machines", "seconds", points, claims)


def test_orders_are_pairs_of_one_place_with_different_values_of_the_paper() -> None:
    points = [
        Point("a", 1, 10.0, 1.0),
        Point("b", 1, 20.0, 2.0),  # as in the paper, against a
        Point("c", 1, 30.0, 1.5),  # behind a, but before b
        Point("d", 1, None, 9.0),
        Point("a", 2, 5.0, 5.0),
        Point("b", 2, 5.0, 6.0),  # the paper has them alike
    ]
    assert comparison(*points).orders == (2, 3)


def test_ratios_leave_out_what_was_fitted() -> None:
    found = comparison(
        Point("a", 1, 10.0, 10.5),
        Point("a", 2, 10.0, 4.0),
        Point("a", 3, 1.0, 9.0, fitted=True),
        Point("a", 4, None, 7),
    )
    worst = found.largest()
    assert worst is not None
    assert (worst[0].x, worst[1]) == (2, 2.5)
    assert found.within(0.1) == 1
    assert found.summary() == "1 of 2 predicted values are within 10 %; the largest factor is 2.50, of a at 2"


def test_statements_that_an_assumption_decides_are_counted_apart() -> None:
    claims = (Claim("x", "sec. 1", True), Claim("y", "sec. 2", True, assumed=True), Claim("z", "sec. 3", False))
    assert comparison(claims=claims).summary() == "2 of 3 statements hold, 1 of them by an assumption"


@given(st.floats(0.011, 0.19))
def test_a_fitted_value_is_found(wanted: float) -> None:
    assert elastic.fitted(lambda one: one**2, wanted**2, 0.0, 0.2) == pytest.approx(wanted, rel=0.02)


def test_a_bandwidth_gives_its_speed_up_by_equation_4() -> None:
    for one in firecaffe.SPEEDUPS:
        rate = firecaffe.bandwidth(one)
        alone_s = one.batch / one.network.images_per_s
        sum_s = 2 * math.log2(one.gpus) * one.network.size / rate
        assert alone_s / (alone_s / one.gpus + sum_s) / one.epochs == pytest.approx(one.times)


def test_a_stop_gives_its_goodput() -> None:
    life_s = decoupled_diloco.YEAR_S / decoupled_diloco.CHIPS[0]
    assert life_s / (life_s + decoupled_diloco.stop_s(88)) == pytest.approx(0.88)


def test_the_speech_model_has_42_million_parameters() -> None:
    assert round(distbelief.PARAMETERS / 1e6) == 42


@pytest.mark.parametrize("gpus", [4, 8])
def test_simulated_steps_are_those_of_equations_3_and_4(gpus: int) -> None:
    network, batch, rate = firecaffe.NIN, 256, 3e9
    compute_s, unit_s = batch / gpus / network.images_per_s, network.size / rate
    tree_s = firecaffe.seconds_a_step(network, gpus, batch, rate, firecaffe.TREE)
    assert tree_s == pytest.approx(compute_s + 2 * math.log2(gpus) * unit_s, rel=0.02)
    server_s = firecaffe.seconds_a_step(network, gpus, batch, rate, firecaffe.SERVERS["server of shards"])
    assert server_s == pytest.approx(compute_s + (gpus + 1) * unit_s, rel=0.02), "p, and one of a round in the next"


def test_learners_that_stop_one_at_a_time_keep_the_goodput_of_one_with_their_chips() -> None:
    stopped_s, chips = decoupled_diloco.stop_s(88), decoupled_diloco.CHIPS[0]
    many = decoupled_diloco.goodput(4, 4 * chips, stopped_s)
    assert many == pytest.approx(88, abs=1.5)
    assert decoupled_diloco.goodput(1, 4 * chips, stopped_s) < many - 15


def test_only_some_are_compared_drawn_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = comparison(Point("a", 1, 10.0, 9.0, "Table 1"), Point("a", 8, None, 2.0))
    monkeypatch.setattr(papers, "COMPARISONS", {"one": lambda: one, "other": lambda: pytest.fail("not chosen")})
    monkeypatch.setattr("sys.argv", ["papers", "--only", "one", "--plot", str(tmp_path), "--json", str(tmp_path / "x")])
    papers.main()
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)["results"]
    assert [point["ratio"] for point in result["points"]] == [0.9, None]
    assert "Table 1" in printed.err
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "x").read_text())["results"] == [result]
    monkeypatch.setattr("sys.argv", ["papers", "--only", "none"])
    with pytest.raises(SystemExit, match="2"):
        papers.main()
    assert "--only none: comparisons are one, other" in capsys.readouterr().err
