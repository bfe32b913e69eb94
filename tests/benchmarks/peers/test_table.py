"""Rows and cells of the comparison."""

from typing import Any

import pytest

from benchmarks.peers import table, user_lines
from benchmarks.peers.comparison import names_of
from benchmarks.peers.systems import ENVIRONMENTS, FOLDER, ROLES, SYSTEMS
from benchmarks.peers.table import Row
from docs.generators import measurements

REASON = "took no part: no such wheel"


def speed(system: str, samples_per_s: float, **more: object) -> Row:
    return {"system": system, "part": "speed", "round": 0, "samples_per_s": samples_per_s, **more}


def kill(system: str, role: str, goes_on: str, back_s: float | None, lost: int = 0) -> Row:
    return {"system": system, "part": "kill", "role": role, "goes_on": goes_on, "back_s": back_s, "lost": lost}


def figures(runs: list[Row], missing: dict[str, str] | None = None) -> dict[str, Any]:
    systems = list(dict.fromkeys([row["system"] for row in runs] + list(missing or {})))
    return table.figures(runs, systems, missing or {}, {"torch": 5, "dbelief": 12})


def test_medians_are_over_the_rounds_and_failed_runs_are_left_out() -> None:
    runs = [speed("torch", value) for value in (10.0, 30.0, 20.0)]
    runs += [speed("dbelief", 5.0), speed("dbelief", 7.0), {"system": "dbelief", "part": "speed", "failed": "ended"}]
    torch, dbelief = figures(runs)["rows"]
    assert torch["samples_per_s"] == 20.0
    assert dbelief["samples_per_s"] == 6.0
    assert figures(runs)["failed"] == [{"system": "dbelief", "part": "speed", "role": None, "failed": "ended"}]


def test_a_figure_that_most_rounds_lack_is_missing() -> None:
    assert table.middle([None, 3.0, None]) is None
    assert table.middle([2.0, 3.0, None]) == 2.5
    assert table.middle(["no", "yes", "no"]) == "no"


def test_cells_where_another_is_better_are_bold() -> None:
    runs = [speed("torch", 20.0, cpu_s=0.05), speed("dbelief", 10.0, cpu_s=0.04)]
    torch, dbelief = figures(runs)["rows"]
    assert torch["cells"] == dict.fromkeys(torch["cells"], "") | {
        "samples_per_s": "**20**",
        "cpu_s": "0.050",
        "lines": "**5**",
    }
    assert dbelief["cells"]["samples_per_s"] == "10"


def test_slow_links_are_compared_with_diloco() -> None:
    runs = [{**speed(name, value), "part": "link"} for name, value in (("torch", 5.0), ("dbelief", 1.0))]
    runs.append({**speed("dbelief, diloco", 6.0), "part": "link"})
    torch, dbelief, diloco = figures(runs)["rows"]
    cells = [row["cells"]["link_samples_per_s"] for row in (torch, dbelief, diloco)]
    assert cells == ["5", "1", "6"]


def test_the_share_with_a_slow_worker_is_of_the_undisturbed_speed() -> None:
    runs = [speed("torch", 20.0), {**speed("torch", 5.0), "part": "slow"}]
    (torch,) = figures(runs)["rows"]
    assert (torch["slow_share"], torch["cells"]["slow_share"]) == (0.25, "25%")


def test_kills_are_compared_by_role() -> None:
    runs = [
        kill("torch", "worker", "yes", 2.0, lost=64),
        kill("torch", "server", "no", None),
        kill("dbelief", "worker", "started again", 3.0),
        kill("dbelief", "server", "started again", 4.0),
    ]
    worker, server, *_ = figures(runs)["kills"]
    assert [worker["cells"][key] for key in ("goes_on", "back_s", "lost")] == ["**yes**", "**2.0**", "64"]
    assert [server["cells"][key] for key in ("goes_on", "back_s")] == ["no", ""]


def test_a_missing_system_has_a_row_with_its_reason() -> None:
    found = figures([speed("dbelief", 1.0)], {"Flower": "no such wheel"})
    assert {row["system"]: row["missing"] for row in found["rows"]} == {"dbelief": None, "Flower": "no such wheel"}
    (first,) = table.tables(found)
    assert [list(column.cells) for column in first.columns[:2]] == [["dbelief", "Flower"], ["1", REASON]]
    assert [column.header for column in first.columns] == ["system", "samples/s", "lines of the user"]


def test_a_file_of_figures_is_one_of_the_measurements() -> None:
    found = figures([speed("torch", 20.0), speed("dbelief", 10.0), kill("torch", "worker", "yes", 2.0)])
    origin = dict.fromkeys(("command", "day", "processor", "commit"), "") | {"cores": 2}
    measurement = measurements.parse("peers", {"measured": origin, "figures": found, "tables": table.recipes(found)})
    assert measurement.cells() == [["torch", "**20**", "**5**"], ["dbelief", "10", "12"]]
    assert measurement.cells("kills") == [["worker", "torch", "yes", "2.0", "0"]]


TRAINER = '''
import torch
# -- user --
model = 1

# a comment
class Server:
    """It serves."""
    model.step()
    report()  # measured
# -- end --
model = 2
'''


def test_lines_of_the_user_are_those_between_markers() -> None:
    assert user_lines.user_lines(TRAINER) == 3
    assert user_lines.user_lines("a: 1\n# b\n\nc: 2\n", marked=False) == 2


@pytest.mark.parametrize("text", ["", "# -- user --\n", "# -- end --\n", "# -- user --\n# -- user --\n"])
def test_markers_are_in_pairs(text: str) -> None:
    with pytest.raises(ValueError, match="-- "):
        user_lines.user_lines(text)


def test_each_system_has_files_an_environment_and_something_to_kill() -> None:
    for system in SYSTEMS:
        assert user_lines.of_files(FOLDER / name for name in system.files) > 3
        assert system.ours or system.environment in ENVIRONMENTS
        assert set(system.kills) <= set(ROLES)


def test_names_of_systems_may_have_commas() -> None:
    assert names_of("torch,dbelief, diloco;Ray Train") == ["torch", "dbelief, diloco", "Ray Train"]
