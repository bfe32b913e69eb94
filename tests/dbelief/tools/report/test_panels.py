"""Marks of a run's members stand where the training was when they changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dbelief.tools.report.panels import Marks
from tests.dbelief.tools.report.test_curves import member

Event = dict[str, Any]
ROLES = ((0, "replica"), (0, "shard"), (0, "client"))


def marks(*steps: Event | float) -> Marks:
    """Marks of events; a number is a progress to this position."""
    found = Marks()
    for step in steps:
        found.take(
            {"event": "progress"} if isinstance(step, float) else step, step if isinstance(step, float) else None
        )
    return found


def test_failures_and_joins_stand_at_the_last_progress() -> None:
    found = marks(100.0, member("died", 1), 150.0, member("joined", 1), member("died", 0, "shard"), 200.0).found
    assert found["failed"] == [(100.0, "replica 1"), (150.0, "shard 0")]
    assert found["joined"] == [(150.0, "replica 1")]


def test_the_first_members_and_those_after_the_warm_start_are_not_marked() -> None:
    found = marks(member("joined", 0), 5.0, member("joined", 1), {"event": "warm_start"}).found
    assert not any(found.values())


def test_clients_are_marked_and_members_that_leave_at_the_end_are_not() -> None:
    ending = {"event": "state", "state": "closing"}
    found = marks(5.0, member("joined", 0, "client"), member("left", 2), ending, member("left", 0)).found
    assert (found["joined"], found["left"]) == ([(5.0, "client 0")], [(5.0, "replica 2")])


def test_a_resumed_run_is_marked_and_its_members_again() -> None:
    ended = {"event": "state", "state": "failed", "elapsed_s": 9.0}
    found = marks(5.0, ended, {"event": "state", "state": "ready", "elapsed_s": 1.0}, member("died", 0)).found
    assert found["restarted"] == [(5.0, "run")]
    assert found["failed"] == [(5.0, "replica 0")]


def test_each_change_is_a_line_in_every_panel_and_a_legend_has_few_names() -> None:
    found = marks(1.0, *(member("died", number) for number in (0, 1, 2, 2)), member("joined", 7))
    panels = Figure().subplots(2, 1)
    found.draw(panels)
    assert [line.get_label() for line in panels[0].get_lines() if not str(line.get_label()).startswith("_")] == [
        "failed: 3 replicas, 4 times",
        "joined: replica 7",
    ]
    below = [np.asarray(line.get_xdata()).tolist() for line in panels[1].get_lines()]
    assert below == [[1.0, 1.0]] * 2
    assert [text.get_text() for text in panels[0].texts] == ["4"]


def test_a_legend_has_the_roles_and_how_often() -> None:
    found = marks(1.0, member("died", 0), 2.0, member("died", 0), *(member("left", n, role) for n, role in ROLES))
    panel = Figure().subplots()
    found.draw([panel])
    assert panel.get_legend_handles_labels()[1] == ["failed: replica 0 (2 times)", "left: 3 members"]
