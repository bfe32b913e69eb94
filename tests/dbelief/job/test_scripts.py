"""Jobs whose model and data a script brings: what fits a script, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import JobError
from dbelief.job import AddRule, Downpour, Job, ScriptData, ScriptModel, SyncSgd, build_job, parse_job
from dbelief.job.strategies.rules import ReplaceRule

SGD = {"name": "sgd", "rate": 0.1}
ADD = {"name": "add"}


def fields(**changes: Any) -> dict[str, Any]:
    """A job for scripts; `strategy__n_push=2` sets a field of a section."""
    job: dict[str, Any] = {
        "name": "scripts",
        "model": {"source": "script"},
        "data": {"source": "script", "train": 1_000},
        "strategy": {"name": "downpour", "rule": SGD},
        "limits": {"epochs": 2},
    }
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = job
        for section in sections:
            place[section] = dict(place[section])
            place = place[section]
        place[name] = value
    return job


def build(**changes: Any) -> Job:
    return build_job(fields(**changes), Path(), "job")


def refusal(**changes: Any) -> str:
    with pytest.raises(JobError) as caught:
        build(**changes)
    return str(caught.value)


def test_a_script_brings_model_and_data() -> None:
    job = build()
    assert isinstance(job.model, ScriptModel)
    assert isinstance(job.data, ScriptData)
    assert (job.data.train, job.data.validation) == (1_000, 0)
    assert parse_job(job.to_yaml(), Path(), "again") == job
    assert job.anchored() == job


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"data": {"source": "digits"}},
            "job: data: must have source: script as model has: a script brings",
        ),
        (
            {"model": {"python": "model.py:Own"}},
            "job: model: must have source: script as data has: a script brings its module and its data",
        ),
        ({"data": {"source": "none"}, "limits": {"samples": 9}, "replicas": 0}, "job: data: must have source: script"),
        ({"data": {"source": "script"}}, "job: data.train: missing; must be a whole number from 1"),
        ({"data__train": 0}, "job: data.train: must be a whole number from 1"),
        ({"data__validation": -1}, "job: data.validation: must be a whole number from 0"),
        ({"data__test": 3}, "job: data.test: no such field"),
        ({"model": {"source": "scirpt"}}, "job: model.source: must be script, not 'scirpt'"),
        ({"model": {"source": "script", "loss": "square"}}, "job: model.loss: no such field"),
        (
            {"limits__validation_accuracy": 0.9},
            "job: limits.validation_accuracy: needs validation data, and the data section gives none",
        ),
    ],
)
def test_model_and_data_that_do_not_fit(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


def test_rule_add_is_for_scripts() -> None:
    own = {"model": {"python": "model.py:Own"}, "data": {"source": "digits"}}
    text = "job: strategy.rule: add needs model source: script, which steps with its own optimiser"
    assert refusal(**own, strategy__rule=ADD) == text
    assert refusal(**own, strategy={"name": "sync-sgd", "form": "shards", "rule": ADD}) == text


def test_diloco_needs_an_inner_rule_where_there_is_no_script() -> None:
    own = {"model": {"python": "model.py:Own"}, "data": {"source": "digits"}}
    text = "job: strategy.inner: must be given: the rule of a replica's own steps; add is for scripts"
    assert refusal(**own, strategy={"name": "diloco"}) == text
    assert refusal(**own, strategy={"name": "diloco", "inner": ADD}) == text
    outer = {"name": "diloco", "inner": SGD, "outer": {"name": "adagrad", "rate": 0.1}}
    assert "strategy.outer" in refusal(**own, strategy=outer)


def elastic(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "rate": 0.1, **more}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"strategy": {"name": "sandblaster"}},
        "strategy.name: must not be sandblaster with a script, whose loop trains mini-batches",
    ),
    (
        {"strategy": {"name": "sync-sgd", "rule": SGD}},
        "strategy.form: needs form: shards with a script, whose steps are not taken in a group of workers",
    ),
    (
        {"strategy": elastic("sync-easgd", form=2)},
        "strategy.form: needs form: 1 with a script, whose steps are not taken in a group of workers",
    ),
    (
        {"strategy__n_push": 2, "strategy__n_fetch": 2},
        "strategy.n_push: and n_fetch must be 1 with a script: it calls sync.step once in so many mini-batches",
    ),
    (
        {"strategy__n_fetch": 3},
        "strategy.n_push: and n_fetch must be 1 with a script: it calls sync.step once in so many mini-batches",
    ),
    (
        {"strategy__rule": ADD, "strategy__n_push": 4},
        "strategy.n_fetch: must be n_push, 4, with rule add: what is pushed is a difference",
    ),
    (
        {"strategy__overlap": True},
        "strategy.overlap: needs rule add with a script: the script steps while a difference travels",
    ),
    ({"strategy__literal": True}, "strategy: must have no literal and local_rate with a script"),
    ({"strategy__local_rate": 0.1}, "strategy: must have no literal and local_rate with a script"),
    (
        {"strategy__clip_norm": 1.0},
        "strategy.clip_norm: must be null with a script, which clips its gradients itself",
    ),
    (
        {"strategy": elastic("async-easgd", clip_norm=1.0)},
        "strategy.clip_norm: must be null with a script, which clips its gradients itself",
    ),
    (
        {"strategy": {"name": "sync-sgd", "rule": SGD, "form": "shards", "clip_norm": 1.0}},
        "strategy.clip_norm: must be null with a script, which clips its gradients itself",
    ),
    (
        {"strategy": elastic("async-measgd")},
        "strategy.name: must not be async-measgd with a script, whose optimiser steps",
    ),
    ({"strategy": elastic("easgd")}, "strategy.name: must not be easgd with a script, whose optimiser steps"),
    (
        {"strategy": {"name": "diloco", "inner": SGD}},
        "strategy.inner: must be null with a script, which makes its own steps",
    ),
    ({"record": True}, "record: must be false with a script: its loop is not replayed"),
    ({"grid": [2]}, "grid: must be [1] with a script, not [2]"),
    ({"grid": [2, 2]}, "grid: must be [1] with a script, not [2, 2]"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED, ids=[f"{n} {text[:40]}" for n, (_, text) in enumerate(REFUSED)])
def test_what_does_not_fit_a_script_is_refused(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes) == f"job: {text}"


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy__staleness": 0},
        {"strategy__staleness": 3},
        {"strategy__staleness_aware": True},
        {"strategy__rule": ADD},
        {"strategy__rule": ADD, "strategy__n_push": 4, "strategy__n_fetch": 4},
        {"strategy": {"name": "sync-sgd", "rule": SGD, "form": "shards"}},
        {"strategy": elastic("async-easgd", period=4)},
        {"strategy": elastic("hogwild-easgd")},
        {"strategy": elastic("sync-easgd", form=1)},
        {"strategy": {"name": "async-sgd", "rate": 0.1}},
        {"strategy": {"name": "diloco", "steps": 500}},
        {"grid": [1, 1]},
        {"replication": 2},
        {"wire": {"push": "bf16"}},
        {"data__validation": 100, "limits__patience": 3},
    ],
    ids=str,
)
def test_what_fits_a_script(changes: dict[str, Any]) -> None:
    job = build(**changes)
    assert parse_job(job.to_yaml(), Path(), "again") == job


def test_rule_add_takes_differences_and_its_rate_is_of_no_meaning() -> None:
    strategy = build(strategy__rule=ADD, strategy__n_push=4, strategy__n_fetch=4).strategy
    assert isinstance(strategy, Downpour)
    assert strategy.at_shards == strategy.rule == AddRule(name="add", rate=1.0)


# -- sync-sgd at the shards ----------------------------------------------------------------------------------


def sync(**more: Any) -> dict[str, Any]:
    return {"name": "sync-sgd", "batch": 8, "rule": SGD, **more}


def test_sync_sgd_at_the_shards_is_downpour_in_lockstep() -> None:
    strategy = build(strategy=sync(form="shards"), replicas=3)
    assert isinstance(strategy.strategy, SyncSgd)
    workers = build(model={"python": "model.py:Own"}, data={"source": "digits"}, strategy=sync(), replicas=3)
    assert isinstance(workers.strategy, SyncSgd)
    at_shards, among = strategy.strategy, workers.strategy
    assert (at_shards.grouped, at_shards.staleness) == (False, 0)
    assert (among.grouped, among.staleness) == (True, None)
    assert at_shards.at_shards == at_shards.rule
    assert among.at_shards == ReplaceRule(name="replace")
    assert (at_shards.n_push, at_shards.n_fetch, at_shards.overlap, at_shards.warm_start) == (1, 1, False, None)
    assert strategy.samples_in_a_mean == workers.samples_in_a_mean == 24


def test_sync_sgd_at_the_shards_is_for_models_of_the_job_too() -> None:
    job = build(model={"python": "model.py:Own"}, data={"source": "digits"}, strategy=sync(form="shards"), grid=[2])
    assert job.strategy.staleness == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strategy": sync(form="shards", gives="sum")}, "strategy.gives: must be mean with form shards, not sum"),
        (
            {"strategy": sync(form="shards", reduction={"way": "ring"})},
            "strategy.reduction: needs form workers: nothing is summed among the workers else",
        ),
        ({"strategy": sync(form="shrads")}, "strategy.form: must be one of workers, shards, not 'shrads'"),
        (
            {"strategy": sync(form="shards"), "record": True},
            "record: must be false with sync-sgd: there is no order of pushes to replay",
        ),
    ],
)
def test_what_does_not_fit_sync_sgd_at_the_shards(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(f"job: {text}")


def test_wire_formats_need_sync_sgd_at_the_shards() -> None:
    own = {"model": {"python": "model.py:Own"}, "data": {"source": "digits"}, "wire": {"push": "bf16"}}
    assert build(**own, strategy=sync(form="shards")).wire.push.name == "bf16"
    assert refusal(**own, strategy=sync()).startswith("job: wire: must be left out with sync-sgd among the workers")
