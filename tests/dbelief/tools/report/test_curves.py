from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dbelief.tools.report.curves import draw_curves, moving_mean

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


@pytest.fixture
def panels(saved: list[Figure], tmp_path: Path) -> Any:
    """Draw, and return the three panels as they were saved."""

    def draw(events: Events) -> tuple[Axes, Axes, Axes]:
        path = tmp_path / "curves.png"
        draw_curves(iter(events), path, "digits: 3 replicas")
        assert path.read_bytes().startswith(b"\x89PNG")
        loss, accuracy, staleness = saved[-1].axes
        return loss, accuracy, staleness

    return draw


def points(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (line,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(label)]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_series_has_its_panel(panels: Any) -> None:
    events = [
        *progress(20),
        {"event": "warm_start", "samples": 500},
        evaluation(5000, 0.5),
        evaluation(10_000, 0.75),
        evaluation(10_000, 0.7, kind="test"),
        {"event": "member", "what": "joined"},
    ]
    loss, accuracy, staleness = panels(events)
    assert points(loss, "training")[0] == [500.0 * (i + 1) for i in range(20)]
    assert points(loss, "validation") == ([5000.0, 10_000.0], [0.5, 0.5])
    assert points(accuracy, "validation, best: 75.00 %") == ([5000.0, 10_000.0], [50.0, 75.0])
    assert points(accuracy, "test: 70.00 %")[1] == [70.0, 70.0]
    assert points(staleness, "mean of pushes")[1] == [float(i % 3) for i in range(20)]
    assert words(loss) == ["warm start ended"]
    for panel in (loss, accuracy, staleness):
        assert [500.0, 500.0] in [np.asarray(line.get_xdata()).tolist() for line in panel.get_lines()]


def test_no_events_leave_panels_that_say_so(panels: Any) -> None:
    said = [words(panel) for panel in panels([])]
    assert said == [["no loss was reported"], ["no accuracy was measured"], ["no staleness was measured"]]


@pytest.mark.parametrize(
    "events",
    [
        [{"event": "progress", "samples": 10, "loss": None, "staleness": None}],
        [{"event": "progress", "samples": 10, "loss": float("nan"), "staleness": 0.0}],
        [evaluation(10, None), evaluation(10, None, kind="test")],
        [evaluation(0, 0.1)],
        [{"event": "warm_start", "samples": 100}],
        [{"event": "progress", "samples": 10, "loss": -1.0}],
        [
            {"event": "progress", "samples": 10, "loss": 0.0},
            {"event": "progress", "samples": 20, "loss": 9.0},
        ],
    ],
)
def test_any_series_may_be_missing(panels: Any, events: Events) -> None:
    assert len(panels(events)) == 3


def test_resumed_run_replaces_rolled_back_points(panels: Any) -> None:
    events = [{"event": "progress", "samples": s, "loss": v} for s, v in ((1, 5), (2, 4), (3, 9), (2, 3), (3, 2))]
    loss, _, _ = panels(events)
    assert points(loss, "training") == ([1.0, 2.0, 3.0], [5.0, 3.0, 2.0])


def test_a_long_series_is_smoothed_over_a_faint_one(panels: Any) -> None:
    loss, _, _ = panels(progress(400))
    faint, smooth = loss.get_lines()
    assert faint.get_alpha() < 0.5
    assert len(smooth.get_ydata()) == len(faint.get_ydata()) == 400
    assert loss.get_yscale() == "linear"


def test_a_loss_that_falls_far_is_drawn_by_decades(panels: Any) -> None:
    events = [{"event": "progress", "samples": i + 1, "loss": 10.0**-i} for i in range(4)]
    assert panels(events)[0].get_yscale() == "log"


def test_staleness_is_smoothed_within_warm_start_only(panels: Any) -> None:
    events = [{"event": "progress", "samples": i, "loss": 1, "staleness": 4 * (i > 200)} for i in range(400)]
    _, _, staleness = panels([*events, {"event": "warm_start", "samples": 200}])
    _, smooth = points(staleness, "mean of pushes")
    assert set(smooth) == {0.0, 4.0}


def test_moving_mean_is_the_plain_one() -> None:
    values = np.random.default_rng(0).normal(size=50)
    got = moving_mean(values, 6)
    assert got[20] == pytest.approx(values[14:27].mean())
    assert got[3] == pytest.approx(values[0:7].mean())
    assert got[0] == pytest.approx(values[0:3].mean())
    assert got[-1] == pytest.approx(values[-3:].mean())
    assert moving_mean(np.arange(50.0), 6)[2:-2] == pytest.approx(np.arange(50.0)[2:-2])
    assert moving_mean(np.zeros(0), 3).shape == (0,)
