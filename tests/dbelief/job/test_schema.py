"""The schema for editors: takes every job that dbelief takes, underlines what is wrong within a field."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from dbelief.job import ComparisonFile, build_job, schema
from dbelief.job.document import yaml_document
from tests.examples import examples

from .test_round_trip import JOBS

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
COMPARISONS = [path for path in EXAMPLES if path.name.startswith("compare_")]
JOB_FILES = [path for path in EXAMPLES if path not in COMPARISONS]
SCHEMA = schema()
CHECK = Draft202012Validator(SCHEMA)

GOOD = """
name: digits
model:
  layers: [lcn, {max_pool: 2}, {dense: 64}, relu, {dense: {units: 10}}, {tanh: null}, {dropout: 0.5}]
  loss: softmax_cross_entropy
data: {source: csv, file: rows.csv, kind: classes, target: species}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, warm_start: {samples: 6e3}}
limits: {samples: 6e4}
"""


def wrong(text: str) -> list[Any]:
    return list(CHECK.iter_errors(yaml_document.read(text, "job").value))


def test_it_is_a_schema_of_the_draft_it_names() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.name)
def test_every_example_is_fine(path: Path) -> None:
    assert wrong(path.read_text()) == []


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.name)
def test_every_job_of_a_comparison_is_fine(path: Path) -> None:
    found = ComparisonFile(path, Path("runs"))
    jobs = [trial.job for trial in (*found.trials(), *found.warm_starts().values())]
    assert [wrong(job.to_yaml()) for job in jobs] == [[]] * len(jobs)


def test_every_field_is_explained() -> None:
    sections = [SCHEMA, *SCHEMA["$defs"].values()]
    fields = [(name, field) for section in sections for name, field in section.get("properties", {}).items()]
    assert len(fields) > 50
    assert [name for name, field in fields if not field.get("description")] == []


@examples(60)
@given(JOBS)
def test_it_takes_whatever_is_a_job(fields: dict[str, Any]) -> None:
    build_job(fields, Path("folder"))
    assert [error.message for error in CHECK.iter_errors(fields)] == []


@pytest.mark.parametrize(
    ("right", "changed", "at"),
    [
        ("name: digits", "nme: digits", []),
        ("name: digits", "name: a b", ["name"]),
        ("samples: 6e4", "samples: many", ["limits", "samples"]),
        ("samples: 6e4", "samples: 0", ["limits", "samples"]),
        ("samples: 6e4", "samples: 1.5", ["limits", "samples"]),
        ("batch: 16", "batch: 0", ["strategy"]),
        ("batch: 16", "batch: '16'", ["strategy"]),
        ("batch: 16", "batches: 16", ["strategy"]),
        ("rate: 0.03", "rate: 0", ["strategy"]),
        ("name: adagrad", "name: adagard", ["strategy"]),
        ("relu", "rely", ["model"]),
        ("{dense: 64}", "{dense: 0}", ["model"]),
        ("{dense: 64}", "{dense: 64, relu: null}", ["model"]),
        ("{max_pool: 2}", "{max_pool: 0}", ["model"]),
        ("{max_pool: 2}", "max_pool", ["model"]),
        ("{max_pool: 2}", "{max_pool: null}", ["model"]),
        ("{dropout: 0.5}", "{dropout: 1}", ["model"]),
        ("lcn", "{lcn: 5}", ["model"]),
        (
            "[lcn, {max_pool: 2}, {dense: 64}, relu, {dense: {units: 10}}, {tanh: null}, {dropout: 0.5}]",
            "[]",
            ["model"],
        ),
        ("loss: softmax_cross_entropy", "autoencoder: {pool: 0}", ["model"]),
        ("loss: softmax_cross_entropy", "stacks: [{}]", ["model"]),
        ("source: csv", "source: cvs", ["data"]),
        ("target: species", "target: 0", ["data"]),
        ("target: species", "target: []", ["data"]),
        ("limits:", "shards: 257\nlimits:", ["shards"]),
        ("limits:", "grid: [0]\nlimits:", ["grid", 0]),
        ("limits:", "device: gpu\nlimits:", ["device"]),
        ("limits:", "start_from: 7\nlimits:", ["start_from"]),
        ("limits:", "start_from: ${RUNS/a\nlimits:", ["start_from"]),
        ("limits:", "record: yes\nlimits:", ["record"]),
    ],
)
def test_a_wrong_field_is_underlined(right: str, changed: str, at: list[str]) -> None:
    assert wrong(GOOD) == []
    assert right in GOOD
    errors = wrong(GOOD.replace(right, changed))
    assert {tuple(error.absolute_path) for error in errors} == {tuple(at)}


@pytest.mark.processes
def test_the_command_prints_it() -> None:
    command = [sys.executable, "-P", "-m", "dbelief", "job", "schema"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert json.loads(printed) == SCHEMA
