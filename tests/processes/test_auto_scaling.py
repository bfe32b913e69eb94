"""A real job whose number of workers follows its throughput."""

from __future__ import annotations

import pytest

from .conftest import Operator, dbelief, wait_for
from .test_steering import JOB, training

pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_workers_are_added_where_they_bring_something(operator: Operator) -> None:
    """They sleep in place of computing, so that twice as many are twice as fast."""
    operator.compute_wait_s = 0.05
    job = JOB.replace("STRATEGY", "downpour").replace("steered", "scaled") + "scale: {max: 4}\n"
    train = operator.start("train", "train", "--quiet", str(operator.write_job(job)))
    run = operator.folder / "runs" / "scaled"
    operator.until_samples("scaled", 100)
    wait_for(lambda: operator.events("scaled", "workers_scaled"), "a change", 180.0)
    (event,) = operator.events("scaled", "workers_scaled")
    assert (event["from"], event["why"]) == (2, "more")
    assert event["to"] in (3, 4)
    assert event["factor"] > 1.1
    assert event["measured_s"] >= 25
    assert 0.5 * 2 * 16 / 0.05 < event["samples_per_s"] < 2 * 16 / 0.05
    wait_for(lambda: len(training(run)) == event["to"], "the workers that are wanted")
    assert dbelief("stop", str(run)).startswith("job scaled ended")
    assert train.ends() == 0, train.log.read_text()
