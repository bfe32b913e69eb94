"""Job files from disk, with overrides."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest

from dbelief.errors import JobError
from dbelief.job import Downpour, LayersModel, load_job, parse_job

TEXT = """\
name: small
model:
  layers: [{dense: 4}, tanh, {dense: {units: 2}}]
  loss: square
data: {source: libsvm, train: train.txt}
strategy:
  name: downpour
  rule: {name: adam, rate: 1e-3}
limits: {samples: 6e4}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_contract(file: Path) -> None:
    job = load_job(file)
    assert job.folder == file.parent
    assert (job.shards, job.replicas, job.seed, job.grid, job.device, job.threads) == (
        1,
        1,
        0,
        (1,),
        "auto",
        1,
    )
    assert job.limits.samples == 60_000
    assert isinstance(job.limits.samples, int)
    strategy = job.strategy
    assert isinstance(strategy, Downpour)
    assert (strategy.batch, strategy.n_fetch, strategy.n_push, strategy.staleness) == (32, 1, 1, None)
    assert strategy.warm_start is not None
    assert strategy.warm_start.share == 0.05
    assert job.schedule.kind == "constant"
    assert (job.evaluate.keep, job.divergence.factor, job.snapshots.every_s, job.snapshots.keep) == (
        None,
        10,
        30,
        2,
    )
    assert (job.deadlines.beat_s, job.deadlines.progress_s, job.deadlines.join_s) == (5, 60, 120)
    assert job.output == Path("runs")
    assert job.start_from is None


@pytest.mark.parametrize(
    ("overrides", "best"),
    [
        ({}, False),
        ({"limits.patience": "3"}, True),
        ({"evaluate.keep": "best"}, True),
        ({"evaluate.keep": "last", "limits.patience": "3"}, False),
    ],
)
def test_best_is_kept_with_early_stopping(file: Path, overrides: dict[str, str], best: bool) -> None:
    assert load_job(file, overrides).keeps_best is best


def test_layers_are_described_in_plain_words(file: Path) -> None:
    model = load_job(file).model
    assert isinstance(model, LayersModel)
    assert model.described() == [("dense", {"units": 4}), ("tanh", {}), ("dense", {"units": 2})]


def test_an_override_takes_the_place_of_a_field(file: Path) -> None:
    job = load_job(
        file,
        {
            "strategy.rule": "{name: sgd, rate: 0.5}",
            "strategy.rule.rate": "0.25",
            "schedule.kind": "poly",
            "schedule.power": "2",
            "model.layers.0.dense": "7",
            "strategy.clip_norm": "",
            "strategy.warm_start": "null",
        },
    )
    assert (job.strategy.rule.name, job.strategy.rule.rate) == ("sgd", 0.25)
    assert isinstance(job.strategy, Downpour)
    assert (job.schedule.kind, job.strategy.clip_norm, job.strategy.warm_start) == ("poly", None, None)
    assert isinstance(job.model, LayersModel)
    assert job.model.described()[0] == ("dense", {"units": 7})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("strategy.rule.rte", "1", "strategy.rule.rte: no such field, did you mean rate?"),
        ("strategy.rule.rate", "fast", "strategy.rule.rate: must be a number above 0, not 'fast'"),
        ("strategy.rule.rate", "[1", "the value given for strategy.rule.rate, line 1, column 3: not YAML"),
        ("strategy..rate", "1", "'strategy..rate' is not the dotted path of a field"),
        ("", "1", "'' is not the dotted path of a field"),
        ("name.x", "1", "name.x: 'x' cannot be set in something that is neither a mapping nor a list"),
        ("model.layers.3", "relu", "model.layers.3: '3' is not a place in a list of 3, from 0"),
        ("model.layers.-1", "relu", "model.layers.-1: '-1' is not a place in a list of 3, from 0"),
    ],
)
def test_invalid_override_is_named_without_a_line(file: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(file, {key: value})
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_override_loses_the_line_that_it_replaced(file: Path) -> None:
    with pytest.raises(JobError, match=r"small\.yaml: strategy\.rule\.rate: ") as caught:
        load_job(file, {"strategy.rule.rate": "0"})
    assert ", line" not in str(caught.value)


def test_aliases_are_overridden_one_at_a_time(tmp_path: Path) -> None:
    text = TEXT.replace("[{dense: 4}, tanh, {dense: {units: 2}}]", "[&d {dense: 4}, tanh, *d]")
    (tmp_path / "j.yaml").write_text(text, encoding="utf-8")
    model = load_job(tmp_path / "j.yaml", {"model.layers.0.dense": "9"}).model
    assert isinstance(model, LayersModel)
    assert [options for _, options in model.described()] == [{"units": 9}, {}, {"units": 4}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; a job is a mapping with name, model, data, strategy"),
        (b"# only a comment\n", "is empty"),
        (b"{}", "is empty"),
        (b"- a\n- b\n", "a job is a mapping with name*not a list"),
        (b"hello", "a job is a mapping with name*not a single value"),
        (b"name: \xff\xfe", "is not UTF-8: byte 0xff at offset 6"),
        (b" " * ((1 << 20) + 1), "is larger than 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        load_job(path)
    found = str(caught.value)
    assert found.startswith(f"{path}: ")
    assert all(word in found for word in words.split("*"))
    assert len(found.splitlines()) == 1


def test_a_missing_file_names_the_nearest(file: Path) -> None:
    with pytest.raises(JobError, match=r"smal\.yaml: no such file; did you mean .*small\.yaml\?$"):
        load_job(file.parent / "smal.yaml")
    with pytest.raises(JobError, match=r"/no: no such folder$"):
        load_job(file.parent / "no" / "such.yaml")


def test_a_directory_and_an_impossible_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"is a directory, not a job file$"):
        load_job(tmp_path)
    with pytest.raises(JobError, match=r"cannot be read: "):
        load_job(tmp_path / "a\0b")


def test_an_unreadable_path_is_refused_with_its_cause(file: Path) -> None:
    with pytest.raises(JobError, match=r"cannot be read: Not a directory$"):
        load_job(file / "x.yaml")


def test_a_byte_order_mark_is_no_part_of_a_name(file: Path) -> None:
    file.write_text(TEXT, encoding="utf-8-sig")
    assert load_job(file).name == "small"


def test_digest_is_canonical_json_of_every_field(file: Path) -> None:
    job = load_job(file)
    canonical = json.dumps(job.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    assert job.digest() == hashlib.sha256(canonical.encode()).hexdigest()
    assert job.digest() == parse_job(TEXT, Path("elsewhere"), "other").digest()
    assert job.digest() != load_job(file, {"seed": "1"}).digest()
    assert job.digest() == load_job(file, {"seed": "0", "limits.samples": "60000"}).digest()


def test_a_job_is_frozen_and_pickles_with_its_folder(file: Path) -> None:
    job = load_job(file)
    with pytest.raises(ValueError, match="frozen"):
        job.seed = 1
    copy = pickle.loads(pickle.dumps(job))
    assert copy == job
    assert copy.folder == file.parent


@pytest.mark.parametrize(
    ("overrides", "rate"),
    [
        ({"lr": "0.5"}, 0.5),
        ({"lr": "0.5", "strategy": "{name: async-easgd, rate: 3}"}, 0.5),
        ({"strategy": "{name: sync-easgd}", "lr": "0.25"}, 0.25),
        ({"lr": "2", "strategy.rule": "{name: sgd}"}, 2.0),
        ({"lr": "2", "strategy.name": "sync-sgd"}, 2.0),
        ({"lr": "2", "strategy": "{name: async-msgd}"}, 2.0),
    ],
)
def test_lr_overrides_the_rate_of_any_strategy(file: Path, overrides: dict[str, str], rate: float) -> None:
    assert load_job(file, overrides).strategy.rule.rate == rate


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"lr": "fast"}, r": strategy\.rule\.rate: must be a number above 0, not 'fast'$"),
        ({"lr": "1", "strategy": "{name: sandblaster}"}, ": lr: sandblaster has no learning rate$"),
        ({"lr": "1", "strategy.name": "downpuor"}, r": strategy\.name: .*did you mean downpour\?$"),
    ],
)
def test_a_wrong_lr(file: Path, overrides: dict[str, str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        load_job(file, overrides)


def test_a_folder_whose_name_is_not_utf_8_is_refused(file: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xdcbungen"))  # as ISO 8859-1 has it
    folder.mkdir()
    path = folder / "job.yaml"
    path.write_bytes(file.read_bytes())
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).endswith(r"/\udcdcbungen', is not UTF-8: rename the folder")
    assert str(caught.value).isascii()
