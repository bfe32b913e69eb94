from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from dbelief.tools.report.curves import moving_mean

Events = list[dict[str, Any]]


def progress(count: int, total: int = 10_000) -> Events:
    return [
        {
            "event": "progress",
            "samples": total * (i + 1) // count,
            "loss": 2.0 / (i + 1) + 0.3,
            "staleness": i % 3,
        }
        for i in range(count)
    ]


def evaluation(samples: int, accuracy: float | None, kind: str = "validation") -> dict[str, Any]:
    return {"event": "evaluation", "set": kind, "samples": samples, "loss": 0.5, "accuracy": accuracy}


def member(what: str, number: int, role: str = "replica") -> dict[str, Any]:
    return {"event": "member", "role": role, "id": number, "what": what}


def points(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (line,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(label)]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_series_has_its_panel(panels: Any) -> None:
    events = [
        *progress(20),
        {"event": "warm_start", "samples": 500},
        evaluation(5000, 0.5),
        evaluation(10_000, 0.75),
        evaluation(10_000, 0.7, kind="test"),
        member("joined", 0),
    ]
    loss, accuracy, staleness = panels(events)
    assert points(loss, "training")[0] == [500.0 * (i + 1) for i in range(20)]
    assert points(loss, "validation") == ([5000.0, 10_000.0], [0.5, 0.5])
    assert points(accuracy, "validation, best: 75.00 %") == ([5000.0, 10_000.0], [50.0, 75.0])
    assert points(accuracy, "test: 70.00 %")[1] == [70.0, 70.0]
    assert points(staleness, "mean of pushes")[1] == [float(i % 3) for i in range(20)]
    assert labels(loss) == ["training (running mean)", "validation", "end of the warm start", "joined: replica 0"]
    for panel in (loss, accuracy, staleness):
        assert [500.0, 500.0] in [np.asarray(line.get_xdata()).tolist() for line in panel.get_lines()]


def test_no_text_leaves_the_picture_or_covers_another(panels: Any) -> None:
    """The places of panels are set without measuring labels: those of seven digits and long legends must have room."""
    events = [*progress(200), {"event": "warm_start", "samples": 500, "epoch": 0.01}]
    events += [{"event": "progress", "samples": 100_000 + i, "epoch": 1 + i, "loss": 12345 * 0.5**i} for i in range(26)]
    events += [evaluation(100_000 + i, 0.9 + 0.00001 * i) for i in range(20)]
    events += [member(what, i) for what in ("died", "joined", "left") for i in range(3)]
    events += [{"event": "takeover"}, {"event": "progress", "samples": 100_100, "epoch": 101, "loss": 0.001}]
    drawn = panels(events)
    figure = drawn[0].get_figure()
    figure.draw_without_rendering()  # at its own size; it was saved as a small picture
    areas = []
    for axes in drawn:
        low, high = axes.get_ylim()
        shown = [label for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
        ticks = Bbox.union([label.get_window_extent() for label in shown])
        below = [axes.get_legend().get_window_extent(), axes.bbox, axes.yaxis.label.get_window_extent(), ticks]
        areas += below
    (title,) = figure.texts
    (epochs,) = drawn[-1].child_axes
    areas += [title.get_window_extent(), drawn[-1].xaxis.label.get_window_extent()]
    areas += [epochs.xaxis.label.get_window_extent()]
    assert len(areas) == 4 * 3 + 3
    for area in areas:
        assert (area.min >= figure.bbox.min).all()
        assert (area.max <= figure.bbox.max).all()
    for one, other in combinations([area.padded(-0.5) for area in areas], 2):
        assert not one.overlaps(other)


def test_no_events_leave_one_panel_that_states_it(panels: Any) -> None:
    (panel,) = panels([])
    assert words(panel) == ["no progress was reported"]


@pytest.mark.parametrize(
    ("events", "drawn"),
    [
        ([{"event": "progress", "samples": 10, "loss": None, "staleness": None}], 1),
        ([{"event": "progress", "samples": 10, "loss": float("nan"), "staleness": 0.0}], 1),
        ([{"event": "progress", "samples": 10, "loss": 1.0, "staleness": 0.5}], 2),
        ([{"event": "progress", "samples": 10, "loss": 1.0, "staleness": 0.0}], 1),
        ([evaluation(10, None), evaluation(10, None, kind="test")], 1),
        ([evaluation(0, 0.1)], 2),
        ([evaluation(10, 0.1, kind="test")], 1),
        ([{"event": "warm_start", "samples": 100}], 1),
        ([{"event": "progress", "samples": 10, "loss": -1.0}], 1),
        ([{"event": "progress", "samples": 10, "loss": 0.0}, {"event": "progress", "samples": 20, "loss": 9.0}], 1),
    ],
)
def test_a_panel_without_data_is_left_out(panels: Any, events: Events, drawn: int) -> None:
    assert len(panels(events)) == drawn


def losses(values: list[float]) -> Events:
    return [{"event": "progress", "samples": i + 1, "loss": value} for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "top"),
    [
        ([5.0 + i / 100 for i in range(100)] + [140.0], 7.0),
        ([10.0 ** (-i / 50) for i in range(100)] + [1e30], 2.0),
        ([i / 100 - 5.0 for i in range(100)] + [900.0], -3.5),
    ],
)
def test_an_outlier_does_not_flatten_the_curve(panels: Any, values: list[float], top: float) -> None:
    (loss,) = panels(losses(values))
    assert values[-2] < loss.get_ylim()[1] < top
    assert "1 of 101 points outside" in labels(loss)


@pytest.mark.parametrize("values", [[3.0, 1.0, 0.5, 0.4], [2.0] * 50, [2.0] * 50 + [2.1], [1e3, 1.0, 0.1, 1e-3]])
def test_a_usual_curve_is_whole(panels: Any, values: list[float]) -> None:
    (loss,) = panels(losses(values))
    assert loss.get_ylim()[0] <= min(values) <= max(values) <= loss.get_ylim()[1]


def test_legends_are_above_their_panels(panels: Any) -> None:
    events = [*progress(20), evaluation(5000, 0.5), {"event": "warm_start", "samples": 500}]
    events += [member(what, number) for number in range(4) for what in ("died", "joined")]
    for panel in panels([*events, *progress(20)]):
        assert panel.get_legend().get_window_extent().y0 >= panel.get_window_extent().y1 - 1


def test_resumed_run_replaces_rolled_back_points(panels: Any) -> None:
    events = [{"event": "progress", "samples": s, "loss": v} for s, v in ((1, 5), (2, 4), (3, 9), (2, 3), (3, 2))]
    (loss,) = panels(events)
    assert points(loss, "training") == ([1.0, 2.0, 3.0], [5.0, 3.0, 2.0])


def test_a_run_that_failed_early_says_so_and_its_points_are_visible(panels: Any) -> None:
    (loss,) = panels([*losses([2.0]), {"event": "state", "state": "failed"}])
    assert loss.figure.get_suptitle() == "digits: 3 replicas (failed)"
    assert loss.get_lines()[0].get_marker() == "o"


def test_a_resumed_run_has_not_failed(panels: Any) -> None:
    (loss,) = panels([{"event": "state", "state": state} for state in ("failed", "ready")])
    assert loss.figure.get_suptitle() == "digits: 3 replicas"


@pytest.mark.parametrize(("epoch", "limits"), [(0.5, None), (4.0, (0.0, 4.08))])
def test_epochs_have_an_axis_once_one_is_complete(
    panels: Any, epoch: float, limits: tuple[float, float] | None
) -> None:
    (loss,) = panels([{"event": "progress", "samples": 200, "loss": 1.0, "epoch": epoch}])
    assert [axis.get_xlim() for axis in loss.child_axes] == ([] if limits is None else [pytest.approx(limits)])


def test_a_long_series_is_smoothed_over_a_faint_one(panels: Any) -> None:
    loss, _ = panels(progress(400))
    faint, smooth = loss.get_lines()
    assert faint.get_alpha() < 0.5
    assert len(smooth.get_ydata()) == len(faint.get_ydata()) == 400
    assert loss.get_yscale() == "linear"
    assert labels(loss) == ["training (running mean)", "the same, smoothed"]


def test_a_loss_that_falls_far_is_drawn_by_decades(panels: Any) -> None:
    events = [{"event": "progress", "samples": i + 1, "loss": 10.0**-i} for i in range(4)]
    (loss,) = panels(events)
    assert (loss.get_yscale(), loss.get_ylabel()) == ("log", "loss (log scale)")


def test_staleness_is_smoothed_within_warm_start_only(panels: Any) -> None:
    events = [{"event": "progress", "samples": i, "loss": 1, "staleness": 4 * (i > 200)} for i in range(400)]
    _, staleness = panels([*events, {"event": "warm_start", "samples": 200}])
    _, smooth = points(staleness, "the same, smoothed")
    assert set(smooth) == {0.0, 4.0}


def test_late_pushes_of_rounds_have_an_age(panels: Any) -> None:
    for rounds, label in (({}, "staleness (versions)"), ({"rounds": 3}, "age (rounds)")):
        panel = panels([event | rounds for event in progress(20)])[-1]
        assert panel.get_ylabel() == label


def test_moving_mean_is_the_plain_one() -> None:
    values = np.random.default_rng(0).normal(size=50)
    got = moving_mean(values, 6)
    assert got[20] == pytest.approx(values[14:27].mean())
    assert got[3] == pytest.approx(values[0:7].mean())
    assert got[0] == pytest.approx(values[0:3].mean())
    assert got[-1] == pytest.approx(values[-3:].mean())
    assert moving_mean(np.arange(50.0), 6)[2:-2] == pytest.approx(np.arange(50.0)[2:-2])
    assert moving_mean(np.zeros(0), 3).shape == (0,)
