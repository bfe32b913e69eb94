"""Advice on a real job while it trains, and on its run folder when it is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Operator, dbelief, wait_for
from .test_steering import JOB, training

pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_a_job_is_advised_on_and_changed(operator: Operator) -> None:
    """Its workers sleep in place of computing, so that more of them are faster."""
    operator.compute_wait_s = 0.05
    job = JOB.replace("STRATEGY", "downpour").replace("steered", "advised")
    train = operator.start("train", "train", "--quiet", str(operator.write_job(job)))
    run = operator.folder / "runs" / "advised"
    operator.until_samples("advised", 100)
    wait_for(lambda: training(run) == [0, 1], "both workers")
    found: dict[str, Any] = json.loads(dbelief("advise", str(run), "--over", "4", "--json", "--apply"))
    assert found["bound"] == "computing"
    assert found["shares"]["computing"] > 0.5
    assert 0.5 * 2 * 16 / 0.05 < found["samples_per_s"] < 2 * 16 / 0.05
    (machine,) = found["machines"]
    assert machine["cores"] >= 1
    assert machine["workers"] == 2
    best = next(one for one in found["advice"] if one["workers"])
    assert best["workers"] > 2
    assert best["gain"] > 1.2
    assert f"{best['workers']} replicas wanted, 2 there now" in found["applied"]
    wait_for(lambda: len(training(run)) == best["workers"], "the workers that were advised")
    dbelief("stop", str(run))
    assert train.ends() == 0, train.log.read_text()
    told = dbelief("advise", str(run))
    assert "the whole run" in told
    assert "bound by         computing: computing takes" in told
