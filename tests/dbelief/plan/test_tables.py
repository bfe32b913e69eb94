"""The tables of `dbelief plan`, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.job import LayersModel, ZooModel, load_job, parse_job
from dbelief.job.zoo import NETWORKS
from dbelief.monitor.format import size
from dbelief.plan import make_plan
from dbelief.plan.tables import planned
from dbelief.rundir.summary import Summary, write_summary
from tests.terminal import shown

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def plan_text(name: str, memory_gib: float | None = None, overrides: Mapping[str, str] = {}) -> str:
    plan = make_plan(load_job(EXAMPLES / f"{name}.yaml", overrides), memory_gib)
    return "\n".join(shown(planned(plan), width=200))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1_500_000, "1.431 MiB"),
        (5 << 40, "5 TiB"),
        (1 << 70, "1.049e+06 PiB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text


def test_most_important_lines_are_first() -> None:
    lines = plan_text("cots_11b", 16).splitlines()
    assert lines[1].split() == ["parameters", "11,199,485,955", "trained"]
    assert any(line.startswith("fits") and "the largest rank: 3.257 GiB of 16 GiB" in line for line in lines)
    assert any(line.startswith("fits") and "each rank at its start: 2.281 GiB of 16 GiB" in line for line in lines)
    too_much = "DOES NOT FIT  coordinator, replicas and shards on this machine: 339.6 GiB of "
    assert any(line.startswith(too_much) for line in lines)
    assert any("11,199,485,952 weights of filters" in line for line in lines)
    (second,) = (line for line in lines if line.startswith("stack 2 "))
    assert "weight 36 x 36 x 288 x 8 x 8 x 288" in second
    assert "6,879,707,137" in second


def test_largest_and_smallest_ranks_are_shown() -> None:
    text = plan_text("cots_11b")
    assert "rank 27, largest" in text
    assert "rank 0, smallest" in text
    few = plan_text("digits_conv", overrides={"grid": "[2, 2]"})
    assert [f"rank {rank}" in few for rank in range(5)] == [True] * 4 + [False]


def test_one_rank_sends_nothing() -> None:
    text = plan_text("digits")
    assert "between ranks" not in text
    assert "sent to other ranks" not in text
    assert "inputs of dense2" in plan_text("digits", overrides={"grid": "[2]"})


def test_frozen_stacks_are_named() -> None:
    text = plan_text("cots_11b", overrides={"model.train": "2"})
    assert "stack 1 (frozen)" in text
    assert "731,289,601 used as they are, 3,588,489,217 of no part in this job yet" in text


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    arguments = ["plan", str(EXAMPLES / "cots_1b.yaml"), "--set", "shards=3", "--memory", "100"]
    as_json = run(main, [*arguments, "--json"])
    assert as_json.exit_code == 0
    found = json.loads(as_json.output)
    assert found["parameters"]["trained"] == 1_367_449_603
    assert len(found["shards"]) == 3
    assert [fit["fits"] for fit in found["fits"]][:2] == [True, True]
    table = run(main, arguments)
    assert table.exit_code == 0
    assert "1,367,449,603 trained" in table.output
    wrong = run(main, [*arguments[:2], "--set", "model.image=[40, 40, 3]"])
    assert wrong.exit_code == 2
    assert run(main, [*arguments[:2], "--memory", "0"]).exit_code == 2


def command(*words: str) -> str:
    """What a command prints, on one line for each line, spaces joined."""
    done = CliRunner().invoke(main, [*words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return "\n".join(" ".join(line.split()) for line in done.output.splitlines())


def test_the_volumes_of_a_network_by_name() -> None:
    text = command("plan", "nin", "--flops", "3e12", "--bandwidth", "200Mbit", "--latency", "0.001")
    assert "|W| 30.38 MB: gradients" in text
    assert "|D| 5,793 MB, 191 |W|: inputs of layers with weights, of 1,024 samples, 32 on each of 32 replicas" in text
    assert "computed 6.76 Tflop in a step, 211 Gflop on a replica: 70.4 ms at 3 Tflop a second" in text
    assert "links 1 ms a message, 25 MB a second each way" in text
    assert "conv10 6 x 6 x 1024 weight 3 x 3 x 384 x 1024, bias 1024 3,539,968" in text
    assert "server 1 75.4 s" in text
    one = command("plan", "googlenet", "--replicas", "1", "--batch", "1024")
    assert "|D| 19.19 GB, 359 |W|: inputs of layers with weights, of 1,024 samples\n" in one
    assert "branches1 28 x 28 x 256 12 of layers side by side, or of a head 163,696" in one
    assert "a gradient summed by" not in one


def test_a_job_has_as_many_replicas_as_is_said() -> None:
    text = command("plan", str(EXAMPLES / "digits_conv.yaml"), "--replicas", "8", "--batch", "4")
    assert "replicas 8, each on 1 x 1 ranks, mini-batches of 4" in text
    assert "of 32 samples, 4 on each of 8 replicas" in text


def test_the_zoo() -> None:
    text = command("zoo")
    assert "nin 7,595,176 30.38 MB 5,793 MB 191 6.76 Tflop model: {zoo: nin}" in text
    assert "googlenet 13,378,280 53.51 MB 19.19 GB 359 9.78 Tflop counted only" in text


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.chain is not None])
def test_a_network_as_a_job_file_has_it(name: str) -> None:
    rest = """
name: spelt
data: {source: npz, file: x.npz}
strategy: {name: downpour, rule: {name: sgd, rate: 1}}
limits: {samples: 1}
"""
    done = CliRunner().invoke(main, ["zoo", name])
    spelt, named = (parse_job(model + rest, Path(), "job") for model in (done.output, f"model: {{zoo: {name}}}"))
    assert isinstance(spelt.model, LayersModel)
    assert isinstance(named.model, ZooModel)
    assert spelt.model.described() == named.model.described()
    assert spelt.model.loss == named.model.loss


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("plan", "lenett"), "lenett: no such file, and no network of the zoo (lenet, *); did you mean lenet?"),
        (("plan", "nowhere.yaml"), "nowhere.yaml: no such file*"),
        (("zoo", "vgg"), "vgg: no network of the zoo (*); did you mean vgg19?"),
        (("zoo", "googlenet"), "googlenet has branches*dbelief plan googlenet counts it"),
        (
            ("plan", "nin", "--memory", "3"),
            "nin is a network of the zoo: --set, --memory, --parameters, --rows and --keys are for a job*",
        ),
        (
            ("plan", "nin", "--bandwidth", "fast"),
            "*'fast' is no rate: wanted bytes a second, or a unit such as 200Mbit*",
        ),
        (("plan", "nin", "--latency", "-1"), "*--latency*-1*"),
    ],
)
def test_wrong_words(words: tuple[str, ...], error: str) -> None:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 2
    assert fnmatch(done.output, f"Error: {error}\n".replace("[", "[[]"))


SCRIPT = """
name: gpt
model: {source: script}
data: {source: script, train: 100000}
strategy: {name: diloco, batch: 8, steps: 32}
wire: {push: int8, pull: bf16}
limits: {epochs: 1}
shards: 2
replicas: 2
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """The job file of a script."""
    path = tmp_path / "job.yaml"
    path.write_text(SCRIPT)
    return str(path)


SLOW = ("--link", "50Mbit", "--latency", "5ms")


def test_a_script_by_its_number_of_parameters(script: str) -> None:
    text = command("plan", script, "--parameters", "25M", "--step", "0.2s", *SLOW)
    assert "parameters 25,000,000 trained" in text
    assert "links 5 ms a message, 6.25 MB a second each way" in text
    assert "exchanged 99.2 kB pushed and 195 kB fetched for each sample; a push with a fetch travels for" in text
    assert "computing 32 mini-batches: 6.4 s, then " in text
    assert "one alone in a second: on these links one machine alone is faster" in text
    hidden = command("plan", script, "--parameters", "25M", "--step", "1s", "--set", "strategy.delay=32", *SLOW)
    assert "computing 32 mini-batches: 32 s, then 0 ms waited: 100 % of the time is computing" in hidden
    assert hidden.endswith("machines 2 replicas train 2 times the samples of one alone in a second")
    unknown = command("plan", script, "--parameters", "25M")
    assert "computing its share is not known: give the time of a mini-batch by --step, such as 0.2s" in unknown
    assert json.loads(command("plan", script, "--parameters", "25M", "--json"))["exchange"]["share"] is None


def test_a_jobs_own_model_has_the_same_rows() -> None:
    text = command("plan", str(EXAMPLES / "digits.yaml"), "--step", "2ms", "--link", "10Mbit")
    assert "on a replica: 2 ms, as given" in text
    assert "exchanged 1.2 kB pushed and 1.2 kB fetched for each sample; a push with a fetch travels for" in text
    assert "one machine alone is faster" in text


def run_of(folder: Path, job: str, **fields: Any) -> str:
    """A run folder with a summary."""
    (folder / "job.yaml").write_text(job)
    named = dict.fromkeys(name for name, field in Summary.model_fields.items() if field.is_required())
    counts = {"samples", "steps", "pushes", "replicas", "shards", "members_lost", "seed", "epochs", "wall_s"}
    empty = {"samples_per_replica": {}, "job": "x", "reason": "", "parameters": 356_170, "pushes_trained_twice": 0}
    write_summary(folder / "summary.json", {**named, **dict.fromkeys(counts, 0), **empty, **fields})
    return str(folder)


TIMES = {"0": {"compute": 3.0, "data": 1.0, "push": 9.0}, "1": {"compute": 4.0, "wait": 5.0}}


def test_a_run_has_parameters_and_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, SCRIPT, steps=40, phase_seconds=TIMES)
    found = json.loads(command("plan", run, "--json"))
    assert (found["parameters"], found["step_s"]) == (356_170, 0.2)  # 8 s of computing
    other = json.loads(command("plan", run, "--parameters", "1k", "--step", "3s", "--json"))
    assert (other["parameters"], other["step_s"]) == (1000, 3.0)
    larger = json.loads(command("plan", run, "--batch", "16", "--json"))
    assert larger["step_s"] is None  # the run's mini-batches have another size


def test_a_run_of_a_script_that_has_no_times(tmp_path: Path) -> None:
    text = command("plan", run_of(tmp_path, SCRIPT, steps=40, phase_seconds={"0": {}}))
    assert "parameters 356,170 trained" in text
    assert "give the time of a mini-batch by --step" in text


def test_a_run_of_a_jobs_own_model(tmp_path: Path) -> None:
    run = run_of(tmp_path, (EXAMPLES / "digits.yaml").read_text(), steps=40, phase_seconds=TIMES)
    assert "on a replica: 200 ms, as given" in command("plan", run)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "*the number of parameters is known once the model is built: give --parameters, such as 25M*"),
        (("--parameters", "25"), ""),
        (("--parameters", "1.5"), "*'1.5' is no number: wanted a whole one*"),
        (("--parameters", "5", "--step", "0"), "*'0' is no time of a mini-batch*"),
        (("--parameters", "5", "--step", "1", "--flops", "1"), "--flops and --step both give*"),
        (("--parameters", "5", "--flops", "1"), "--flops needs the layers of a model, and *job.yaml has none*"),
        (("--parameters", "5", "--memory", "1"), "--memory needs the layers of a model, and *job.yaml has none*"),
        (("--parameters", "5", "--rows", "user=5"), "--rows and --keys are for the tables of a job, and *has none"),
        (("--parameters", "5", "--set", "model={layers: [relu], loss: softmax_cross_entropy}"), "*"),
    ],
)
def test_wrong_words_for_a_script(script: str, words: tuple[str, ...], error: str) -> None:
    done = CliRunner().invoke(main, ["plan", script, *words])
    assert done.exit_code == (2 if error else 0)
    assert not error or fnmatch(done.output, f"Error: {error}\n")


TABLES = """
name: clicks
model: {source: script}
data: {source: script, train: 100}
strategy: {name: downpour, batch: 50, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
shards: 2
replicas: 2
tables:
  user: {width: 16, rule: {name: row-adagrad, rate: 0.05}, evict: {lru: 10M}}
  item: {width: 8, rule: {name: lazy-adam, rate: 0.001}, admit: {after: 3}}
"""


def test_tables_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TABLES)
    words = ("plan", str(tmp_path / "job.yaml"), "--parameters", "1M")
    text = command(*words)
    assert "memory of the shards is not known: give the rows of each table by --rows, such as user=10M" in text
    assert "user 16 + 1 86.7 B 10,000,000 1.553 GiB give --keys" in text
    assert "item 8 + 16 116 B each million 246 MiB give --keys" in text
    known = (*words, "--rows", "item=1M", "--keys", "user=50,item=1k", "--step", "10ms")
    text = command(*known, "--memory", "2")
    assert "fits the fullest shard: 986.8 MiB of 2 GiB; on machines of their own shards: 1 is enough" in text
    assert "3.6 kB 3.6 kB" in text
    assert "the busiest link is in use for" in text
    assert "diloco" not in text
    assert "DOES NOT FIT the fullest shard: 986.8 MiB of 512 MiB" in command(*known, "--memory", "0.5")
    found = json.loads(command(*known, "--json"))["rows"]
    assert [table["name"] for table in found["tables"]] == ["user", "item"]
    assert found["traffic"] == {"pushed": 3600 + 40_000, "asked": 8400, "fetched": 3200 + 32_000, "pulls": 2}


def test_a_model_with_layers_has_its_own_parameters() -> None:
    done = CliRunner().invoke(main, ["plan", str(EXAMPLES / "digits.yaml"), "--parameters", "5M"])
    assert done.exit_code == 2
    assert done.output.startswith("Error: --parameters is for the model of a script or of Python code")


def test_a_run_in_progress_whose_coordinator_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SCRIPT)
    done = CliRunner().invoke(main, ["plan", str(tmp_path)])
    assert done.exit_code != 0
    assert "there is no summary.json" in done.output
    assert "25 trained" in command("plan", str(tmp_path), "--parameters", "25", "--step", "1")
