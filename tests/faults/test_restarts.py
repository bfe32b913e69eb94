"""A recovered shard has lost exactly the pushes after its snapshot, and reports their number.

What its vectors should hold is told by the log of what each of its lives has applied, up to the ledger that its
successor was restored with.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from dbelief.core.push import Pusher
from dbelief.rpc.wire import bulk
from tests.faults.invariants import check_ledgers, check_vector
from tests.faults.network import Network
from tests.faults.plan import Harm, Kind, Plan, Way, draw_accidents
from tests.faults.shards import PATIENCE_S, Served, Shards, Steps, Trainer, integers, train

pytestmark = pytest.mark.processes

RUNS = (20, 4, 2)
"""Segments of three shards; the first one acknowledges a push in its middle, too."""
LENGTH = 3


@pytest.fixture(autouse=True)
def _few_segments_in_a_message() -> Iterator[None]:
    with patch.object(bulk, "FULL_BYTES", 2 * 4 * LENGTH):
        yield


def check_history(shards: Shards, trainers: list[Trainer], what: object) -> list[int]:
    """Every push is there once or lost once; the losses, per segment."""
    gradients = {trainer.pusher: trainer.gradients for trainer in trainers}
    total = sum(len(rows) for rows in gradients.values())
    history = Counter(row for shard in shards.shards if isinstance(shard, Served) for row in shard.history)
    assert set(history.values()) <= {1}, f"{history.most_common(3)}; {what}"
    expected = np.zeros(shards.placement.size, np.float32)
    held = [0] * len(shards.placement.spans)
    for index, who, sequence in history:
        span = shards.placement.spans[index]
        expected[span.start : span.stop] -= gradients[who][sequence - 1, span.start : span.stop]
        held[index] += 1
    check_vector(shards.read(), expected, what)
    lost = [loss for reply in shards.stats() for loss in reply.lost]
    assert lost == [total - count for count in held], what
    check_ledgers(shards.stats(), {trainer.pusher: len(trainer.gradients) for trainer in trainers}, what)
    return lost


def through_restarts(serve: Callable[..., Shards], folder: Path, seed: int, pushes: int, deaths: int) -> int:
    """Push through a bad network while sets are written and shards die; the segment pushes that were lost."""
    rng = random.Random(seed)
    shards = serve(RUNS, LENGTH)
    pushers = [Pusher(number, 10 + number) for number in range(3)]
    each = pushes // len(pushers)
    steps = Steps(each)
    accidents = draw_accidents(seed, ["0", "1", "2"], len(pushers) * (each - 1), deaths, [Harm.KILL])
    ways = [{Way.PUSH: each * -(-count // 2)} for count in RUNS]
    links = {f"{who.replica}.{shard}": ways[shard] for who in pushers for shard in range(len(RUNS))}
    plan = Plan.draw(seed, links, share=0.02, weights={Kind.DROP: 0.1}, accidents=accidents)
    network = Network(plan)
    with network.installed():
        trainers = [
            Trainer(shards, who, integers(seed + who.replica, each, shards.placement.size), network, after=steps.pushed)
            for who in pushers
        ]
        crew = threading.Thread(target=train, args=(trainers, 2 * PATIENCE_S), daemon=True)
        crew.start()
        shards.snapshot(folder / "set-0", "set-0")
        for number, accident in enumerate(plan.accidents, 1):
            before = plan.accidents[number - 2].step if number > 1 else 0
            steps.wait_for(rng.randint(before, accident.step))  # a set is as old as chance has it
            newest = f"set-{number}"
            shards.snapshot(folder / newest, newest)
            steps.wait_for(max(accident.step, min(steps.count + 1, len(pushers) * (each - 1))))  # the set lacks a push
            shards.restart(int(accident.process), folder / newest, newest, same_port=rng.random() < 0.5)
        steps.calm.set()
        crew.join()
    for trainer in trainers:
        trainer.client.close()
        if trainer.error is not None:
            raise AssertionError(f"{trainer.error}; {plan}") from trainer.error
    lost = check_history(shards, trainers, plan)
    assert (sum(trainer.lost for trainer in trainers) > 0) == (sum(lost) > 0), plan
    return sum(lost)


def test_losses_are_remembered_across_restarts(serve: Callable[..., Shards], tmp_path: Path) -> None:
    shards = serve((2, 1), LENGTH)
    trainer = Trainer(shards, Pusher(1, 9), integers(1, 9, shards.placement.size), deadline_s=30)
    for life, (kept, lost) in enumerate([(2, 3), (1, 2)]):
        for _ in range(kept):
            trainer.step()
        shards.snapshot(tmp_path / f"set-{life}", f"set-{life}")
        for _ in range(lost):
            trainer.step()
        shards.restart(0, tmp_path / f"set-{life}", f"set-{life}", same_port=True)
    trainer.step()
    trainer.client.close()
    assert trainer.pushed == len(trainer.gradients)
    assert check_history(shards, [trainer], "") == [5, 5, 0]
    assert trainer.lost == 5


@pytest.mark.parametrize("seed", [1, 2])
def test_losses_are_counted_to_the_push(serve: Callable[..., Shards], tmp_path: Path, seed: int) -> None:
    assert through_restarts(serve, tmp_path, seed, pushes=90, deaths=4) > 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3, 13))
def test_many_deaths(serve: Callable[..., Shards], tmp_path: Path, seed: int) -> None:
    lost = through_restarts(serve, tmp_path, seed, pushes=600, deaths=8)
    assert lost > 0
    print(f"seed {seed}: 600 pushes on {sum(RUNS)} segments through 8 deaths, {lost} segment pushes lost and counted")
