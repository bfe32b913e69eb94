"""Job files from disk, with overrides; and jobs that survive being written and read."""

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import JobError
from dbelief.job import Job, LayersModel, build_job, load_job, parse_job

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
        2,
        1,
        0,
        (1,),
        "auto",
        1,
    )
    assert job.limits.samples == 60_000
    assert isinstance(job.limits.samples, int)
    strategy = job.strategy
    assert (strategy.batch, strategy.n_fetch, strategy.n_push, strategy.staleness) == (32, 1, 1, None)
    assert strategy.warm_start is not None
    assert strategy.warm_start.share == 0.05
    assert job.schedule.kind == "constant"
    assert (job.evaluate.keep, job.divergence.factor, job.snapshots.every_s, job.snapshots.keep) == (
        "best",
        10,
        30,
        2,
    )
    assert (job.deadlines.beat_s, job.deadlines.progress_s, job.deadlines.join_s) == (5, 60, 120)
    assert job.output == Path("runs")


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
def test_a_wrong_override_is_named_without_a_line_of_the_file(file: Path, key: str, value: str, words: str) -> None:
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
        (b"", "is empty; a job is a mapping with name, model, data, strategy, limits"),
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
    with pytest.raises(JobError, match=r"no such file$"):
        load_job(file.parent / "no" / "such.yaml")


def test_a_directory_and_an_impossible_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"is a directory, not a job file$"):
        load_job(tmp_path)
    with pytest.raises(JobError, match=r"cannot be read: "):
        load_job(tmp_path / "a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what it likes")
def test_an_unreadable_file_is_refused(file: Path) -> None:
    file.chmod(0)
    with pytest.raises(JobError, match=r"cannot be read: Permission denied$"):
        load_job(file)


def test_a_byte_order_mark_is_no_part_of_a_name(file: Path) -> None:
    file.write_text(TEXT, encoding="utf-8-sig")
    assert load_job(file).name == "small"


def test_the_digest_is_that_of_canonical_json_and_sees_every_field(file: Path) -> None:
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


def described(section: Any, path: str = "") -> list[tuple[str, str | None]]:
    """(path, description) of every field below a section's JSON schema."""
    return [(f"{path}.{name}", field.get("description")) for name, field in section.get("properties", {}).items()] + [
        pair for name, inner in section.get("$defs", {}).items() for pair in described(inner, name)
    ]


def test_every_field_has_a_description() -> None:
    schema = Job.model_json_schema()
    pairs = described(schema)
    assert len(pairs) > 80
    assert [path for path, text in pairs if not text] == []


# Jobs drawn at random, as plain values.
SHARE = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(0, 1e30, exclude_min=True)
COUNT = st.integers(1, 10**15)
PART = st.floats(0, 0.4) | st.integers(0, 10**6)
PATHS = st.text(st.characters(codec="utf-8", exclude_characters="$\0"), min_size=1) | st.sampled_from(
    ["${DATA}/x", "no", "1e3", "~", "2026-01-01", "a: b", "# c", "x$y"]
)


def options(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


LAYER = st.sampled_from(["relu", "sigmoid", "tanh", {"relu": None}]) | st.builds(
    lambda units, short: {"dense": units if short else {"units": units}}, COUNT, st.booleans()
)
MODEL = options(
    {
        "layers": st.lists(LAYER, min_size=1, max_size=4),
        "loss": st.sampled_from(["square", "softmax_cross_entropy"]),
    }
) | st.just({"python": "models/mine.py:Model"})
DATA = st.one_of(
    st.just({"source": "digits"}),
    options({"source": st.just("idx"), "folder": PATHS}, validation=st.integers(1, 10**6)),
    options({"source": st.just("npz"), "file": PATHS}, validation=PART, test=PART),
    options(
        {"source": st.just("libsvm"), "train": PATHS},
        test=PATHS | st.none(),
        features=COUNT,
        validation=SHARE,
    ),
    options(
        {
            "source": st.just("synthetic"),
            "kind": st.sampled_from(["classes", "regression"]),
            "samples": st.integers(100, 10**9),
            "features": st.integers(1, 10**6),
            "noise": st.floats(0, 10),
        },
        classes=st.integers(2, 10),
    ),
)
RULE = st.one_of(
    options({"name": st.just("sgd"), "rate": POSITIVE}),
    options({"name": st.just("momentum"), "rate": POSITIVE}, mu=SHARE),
    options({"name": st.just("adagrad"), "rate": POSITIVE}, eps=POSITIVE, a0=POSITIVE),
    options({"name": st.just("adam"), "rate": POSITIVE}, beta1=SHARE, beta2=SHARE, eps=POSITIVE),
)
STRATEGY = options(
    {"name": st.just("downpour"), "rule": RULE},
    batch=st.integers(1, 1000),
    n_fetch=st.integers(1, 100),
    n_push=st.integers(1, 100),
    literal=st.booleans(),
    overlap=st.booleans(),
    local_rate=POSITIVE | st.none(),
    clip_norm=POSITIVE | st.none(),
    warm_start=st.none() | options({}, samples=COUNT, loss=st.floats(-10, 10), share=SHARE),
    lease=st.integers(1000, 10**6),
) | options({"name": st.just("downpour"), "rule": RULE, "staleness": st.just(0)})
SCHEDULE = st.one_of(
    st.just({"kind": "constant"}),
    options({"kind": st.just("step"), "every": COUNT, "factor": POSITIVE}),
    options({"kind": st.just("poly"), "power": POSITIVE}, total=COUNT),
)
LIMITS = st.one_of(
    options({"epochs": POSITIVE}, wall_s=POSITIVE),
    options({"samples": COUNT}, epochs=POSITIVE),
)
JOBS = options(
    {
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
        "model": MODEL,
        "data": DATA,
        "strategy": STRATEGY,
        "limits": LIMITS,
    },
    schedule=SCHEDULE,
    evaluate=options({}, every=COUNT | st.none(), keep=st.sampled_from(["best", "last"])),
    grid=st.just([1, 1]),
    seed=st.integers(0, 10**15),
    record=st.booleans(),
    snapshots=options({}, every_s=POSITIVE | st.none(), keep=st.integers(1, 9)),
    output=PATHS,
)


@given(JOBS)
def test_any_job_survives_being_written_and_read(fields: dict[str, Any]) -> None:
    job = build_job(fields, Path("folder"))
    again = parse_job(job.to_yaml(), Path("folder"), "again")
    assert again == job
    assert again.digest() == job.digest()
    assert again.to_yaml() == job.to_yaml()
