"""Real `dbelief ps` processes, killed and stopped: a vector that counts pushes agrees with the losses they report."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dbelief.core.push import Pusher
from tests.faults.invariants import check_gone, check_ledgers, check_vector
from tests.faults.plan import Harm, Plan, draw_accidents
from tests.faults.process_faults import carry_out
from tests.faults.shards import PATIENCE_S, Shards, Steps, Trainer, train
from tests.faults.standin import Host, Process

pytestmark = pytest.mark.processes


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    """Two shards, each a process."""
    host = Host(tmp_path)
    shards = Shards((5, 2), start=host)
    yield shards
    pids = [shard.process.pid for shard in shards.shards if isinstance(shard, Process)]
    for shard in shards.shards:
        shards.configure(shard, stop=True)
        if isinstance(shard, Process):
            assert shard.process.wait(PATIENCE_S) == 0
    shards.close()
    host.close()
    check_gone(pids)


def pids(shards: Shards) -> dict[str, int]:
    return {str(n): shard.process.pid for n, shard in enumerate(shards.shards) if isinstance(shard, Process)}


def files(name: str) -> list[Path]:
    raise AssertionError(f"no file of shard {name} is to be harmed")


def test_killed_and_stopped_shards_report_their_losses(shards: Shards, tmp_path: Path) -> None:
    plan = Plan(5, accidents=draw_accidents(5, ["0", "1"], 150, 4, [Harm.KILL, Harm.PAUSE]))
    assert {accident.harm for accident in plan.accidents} == {Harm.KILL, Harm.PAUSE}
    each = 100
    steps = Steps(each)
    pushers = [Pusher(number, 10 + number) for number in range(2)]
    ones = np.ones((each, shards.placement.size), np.float32)
    trainers = [Trainer(shards, who, ones, after=steps.pushed) for who in pushers]
    crew = threading.Thread(target=train, args=(trainers, 2 * PATIENCE_S), daemon=True)
    crew.start()
    for number, accident in enumerate(plan.accidents):
        folder = tmp_path / f"set-{number}"
        steps.allow(accident.step - 4)  # at least what is pushed from here to the step dies with the shard
        shards.snapshot(folder, folder.name)
        steps.allow(accident.step + 10)
        steps.wait_for(accident.step)
        carry_out(accident, pids(shards), files)
        if accident.harm is Harm.KILL:
            shards.restart(int(accident.process), folder, folder.name, same_port=number % 2 == 0)
    steps.calm.set()
    steps.allow(math.inf)
    crew.join()
    for trainer in trainers:
        trainer.client.close()
        assert trainer.error is None, f"{trainer.error}; {plan}"
    lost = [loss for reply in shards.stats() for loss in reply.lost]
    assert sum(lost) > 0, plan
    expected = np.repeat(np.array(lost, np.float32) - len(pushers) * each, [s.length for s in shards.placement.spans])
    check_vector(shards.read(), expected, f"{lost}; {plan}")
    check_ledgers(shards.stats(), dict.fromkeys(pushers, each), plan)
