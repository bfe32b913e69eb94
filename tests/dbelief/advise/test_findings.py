"""Advice on jobs that one thing bounds, and what is never advised."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dbelief.advise.findings import WORTH, Advice, Findings, findings_of
from dbelief.advise.measurements import Measurements
from dbelief.advise.tables import advised, command_of
from dbelief.job import build_job
from dbelief.rundir.json_values import plain
from tests.examples import examples

from . import situations


def advice_on(findings: Findings, name: str) -> Advice:
    """The one on a field, or on "workers" or "shards"."""
    found = [
        one
        for one in [*findings.advice, *findings.nothing]
        if (getattr(one, name) if name in ("workers", "shards") else one.settings.get(name)) is not None
    ]
    return found[-1]


@pytest.mark.parametrize(("bound", "made"), situations.BOUNDS.items())
def test_each_bound_is_named(bound: str, made: Callable[[], Measurements]) -> None:
    findings = findings_of(made())
    assert findings.bound == bound, findings.reason
    assert sum(findings.shares.values()) == pytest.approx(1.0)


def test_on_a_slow_link_exchanges_are_rarer_or_smaller() -> None:
    findings = findings_of(situations.link())
    rarer, smaller = advice_on(findings, "strategy.n_push"), advice_on(findings, "wire.push")
    assert rarer.gain == pytest.approx(470 / 200, rel=0.1)
    assert 1.2 < smaller.gain < rarer.gain
    fields = advice_on(findings, "strategy").settings
    job = build_job(findings.measurements.job.model_dump(mode="json"), Path(), "job", fields)
    assert job.strategy.name == "diloco"


def test_elastic_averaging_exchanges_in_longer_periods() -> None:
    strategy = {"name": "async-easgd", "batch": 8, "rate": 0.1}
    job = build_job(situations.job_of().model_dump(mode="json") | {"strategy": strategy}, Path(), "job")
    findings = findings_of(replace(situations.link(), job=job))
    longer = advice_on(findings, "strategy.period")
    assert longer.gain > 2
    assert not any("wire.push" in one.settings for one in findings.advice)


def test_rounds_of_diloco_get_longer_on_a_slow_link() -> None:
    strategy = {"name": "diloco", "batch": 8, "steps": 8, "inner": {"name": "sgd", "rate": 0.01}}
    job = build_job(situations.job_of().model_dump(mode="json") | {"strategy": strategy}, Path(), "job")
    findings = findings_of(replace(situations.link(), job=job))
    longer = advice_on(findings, "strategy.steps")
    assert int(longer.settings["strategy.steps"]) > 8
    assert longer.gain > 1.5
    assert advice_on(findings, "strategy.quorum").settings == {"strategy.quorum": "2"}


def test_one_shard_too_few_gets_another() -> None:
    findings = findings_of(situations.one_shard())
    more = advice_on(findings, "shards")
    assert more.shards == 2
    assert 1.4 < more.gain < 2.0


def test_a_straggler_costs_the_others_their_speed() -> None:
    free = advice_on(findings_of(situations.straggler()), "strategy.staleness")
    assert free.settings == {"strategy.staleness": "null"}
    assert free.gain == pytest.approx((2 / 32 + 1 / 302) / (3 / 303), rel=0.15)


def test_slow_data_is_read_by_more_workers() -> None:
    more = advice_on(findings_of(situations.data()), "workers")
    assert more.workers == 4
    assert more.gain == pytest.approx(2.0, rel=0.1)


def test_where_all_processors_compute_nothing_helps_but_another_machine() -> None:
    findings = findings_of(situations.computing())
    workers = advice_on(findings, "workers")
    assert workers in findings.nothing
    assert workers.gain < WORTH
    machine = next(one for one in findings.advice if one.what.startswith("one machine more"))
    assert machine.gain == pytest.approx(2.0, rel=0.1)
    assert not machine.scales
    assert "1.9 of 2 processors" in findings.reason


def test_where_processors_are_free_more_workers_compute() -> None:
    findings = findings_of(situations.spare())
    assert findings.bound == "computing"
    assert advice_on(findings, "workers").gain == pytest.approx(2.0, rel=0.1)


def test_small_batches_grow() -> None:
    larger = advice_on(findings_of(situations.small_batch()), "strategy.batch")
    assert int(larger.settings["strategy.batch"]) >= 64
    assert larger.gain > 3


def test_leases_are_smaller_or_workers_fewer() -> None:
    findings = findings_of(situations.leases())
    smaller = advice_on(findings, "strategy.lease")
    assert smaller.gain == pytest.approx(6 / 4, rel=0.05)
    assert advice_on(findings, "workers").workers == 4


def test_one_machine_is_faster_than_two_on_a_slow_link() -> None:
    alone = advice_on(findings_of(situations.machine()), "replicas")
    assert alone.settings == {"replicas": "1", "shards": "1"}
    assert alone.gain == pytest.approx((1 / 60) / (2 / 1750), rel=0.25)


def test_slow_links_are_worth_more_the_slower_they_are() -> None:
    def rarer(exchange_ms: float) -> float:
        return advice_on(findings_of(situations.link(exchange_ms)), "strategy.n_push").gain

    gains = [rarer(exchange_ms) for exchange_ms in (60, 120, 270, 600, 2000)]
    assert gains == sorted(gains)


@examples(60)
@given(
    compute=st.floats(1, 500),
    data=st.floats(0, 200),
    push=st.floats(0.1, 2000),
    fetch=st.floats(0, 2000),
    wait=st.floats(0, 100),
    used=st.floats(0, 0.9),
    count=st.integers(1, 8),
    apart=st.booleans(),
    lockstep=st.booleans(),
)
def test_what_is_recommended_is_never_a_loss(
    compute: float,
    data: float,
    push: float,
    fetch: float,
    wait: float,
    used: float,
    count: int,
    apart: bool,
    lockstep: bool,
) -> None:
    workers = [
        situations.worker(
            number, str(number) if apart else "a", used, compute=compute, data=data, push=push, fetch=fetch, wait=wait
        )
        for number in range(count)
    ]
    found = situations.measured(workers, job=situations.job_of(staleness=0 if lockstep else None))
    if found.missing():
        return
    findings = findings_of(found)
    assert all(one.gain >= WORTH for one in findings.advice)
    assert sum(findings.shares.values()) == pytest.approx(1.0)
    json.dumps(plain(findings.described()), allow_nan=False)


def test_the_table_has_bound_gain_and_command() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(advised(findings_of(situations.one_shard()), "runs/advised"))
    text = shown.get()
    assert "bound by         shards:" in text
    assert "dbelief scale ps 2 runs/advised" in text
    assert "--set strategy.n_push=" in text


def test_of_a_run_that_is_over_everything_is_a_setting() -> None:
    over = replace(situations.data(), over=True)
    best = findings_of(over).advice[0]
    assert command_of(best, "runs/advised", over=True) == "--set replicas=4"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (situations.measured([]), "no worker has trained"),
        (situations.measured([situations.idle(0)]), "no worker has pushed in 10 s, .*: --over 30"),
        (situations.measured([situations.worker(0, compute=5000)]), "2 mini-batches and 2 pushes.*: --over 38"),
        (replace(situations.measured([situations.worker(0, compute=5000)]), over=True), "no worker has made more than"),
    ],
)
def test_too_little_was_measured(made: Measurements, said: str) -> None:
    import re

    assert re.search(said, made.missing())
