"""The fleet file, and the machines that the event loop works on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dbelief.errors import JobError
from dbelief.simulate.fleet import Fleet, MachineGroup, Slow, load_fleet

from .fleets import fleet, scenario

GOOD = """
groups:
  - {name: office, machines: 3, step: 200ms, link: 50Mbit, latency: 5ms, life: 6h, price: 0.25, processors: 4}
  - {name: server, workers: 0, shards: 2, coordinator: true, link: 1Gbit, price: 1}
"""


def _load(folder: Path, text: str) -> Fleet:
    (folder / "fleet.yaml").write_text(text)
    return load_fleet(folder / "fleet.yaml")


def test_quantities_have_units(tmp_path: Path) -> None:
    found = _load(tmp_path, GOOD)
    office, server = found.groups
    assert (office.step, office.link, office.latency, office.life) == (0.2, 6.25e6, 0.005, 21_600.0)
    assert (found.workers, found.shards, found.leader, found.price) == (3, 2, server, 1.75)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("groups: []", "fleet.yaml, line 1: groups: must be a list with at least one item"),
        (
            "groups: [{name: a, step: fast, shards: 1}]",
            "groups.0.step: must be a time such as 10min, 6h or 7d, or null, not 'fast'",
        ),
        ("groups: [{name: a, shards: 1}]", "groups.0.step: must be given where there are workers"),
        ("groups: [{name: a, step: 1s}]", "groups: has no shards: say `shards: 1`"),
        ("groups: [{name: a, workers: 0, shards: 1}]", "groups: has no workers"),
        ("groups: [{name: a, step: 1s, shards: 1}, {name: a, step: 1s}]", "groups: has 'a' twice"),
        ("groups: [{name: a, step: 1s, shards: 1, lnik: 1Gbit}]", "did you mean link"),
        ("groups: [{name: a, step: 1s, shards: 1, machines: 100000, workers: 2}]", "more than 100,000 workers"),
        ("groups: [{name: a, step: 1s, shards: 1, loss: 0.7}]", "groups.0.loss"),
        ("", "is empty; a fleet is a mapping with groups"),
    ],
)
def test_errors_name_the_place(wrong: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as error:
        _load(tmp_path, wrong)
    assert message in str(error.value)


def test_loss_lowers_what_a_stream_gets() -> None:
    clean, lossy = (MachineGroup(name="a", step=1.0, link=1e8, latency=0.02, loss=loss) for loss in (0.0, 0.01))
    assert clean.crosses == 1e8
    assert lossy.crosses == pytest.approx(1448 / 0.04 * math.sqrt(1.5 / 0.01)), "Mathis et al. 1997"
    assert MachineGroup(name="a", step=1.0).crosses == math.inf


def test_machines_and_workers_of_a_fleet() -> None:
    made = Fleet(
        groups=(
            MachineGroup(name="a", machines=2, workers=3, step=1.0, processors=2, slow=Slow(share=0.5, factor=4.0)),
            MachineGroup(name="b", machines=1, step=2.0, shards=1, host="here", processors=1, link=1e6, latency=0.01),
        )
    )
    world = scenario(on=made).world()
    assert world.machines["processors"].tolist() == [2, 2, 0, 1]
    assert world.machines["first"].tolist()[:3] == [0, 3, 6]
    assert world.replicas["station"].tolist() == [0, 0, 0, 1, 1, 1, 3]
    assert world.replicas["step_s"].tolist() == [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 2.0]
    assert world.replicas["own"].tolist() == [1.0] * 6 + [0.0], "the shard is on the last one's machine"


@pytest.mark.parametrize("across", [0.0, 0.3])
def test_machines_differ_as_they_are_said_to(across: float) -> None:
    steps = scenario(on=fleet(20_000, across=across)).world().replicas["step_s"]
    assert np.mean(steps) == pytest.approx(1.0, rel=0.01)
    assert np.std(steps) == pytest.approx(across, rel=0.05, abs=1e-12)
