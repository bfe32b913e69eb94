"""Random jobs survive a round trip; any other input is a JobError."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import JobError
from dbelief.job import LibsvmData, PythonModel, StacksModel, build_job, parse_job
from tests.dbelief.job.test_load import TEXT
from tests.examples import examples
from tests.jobs import small_job

SHARE = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(0, 1e30, exclude_min=True)
COUNT = st.integers(1, 10**15)
PART = st.floats(0, 0.4) | st.integers(0, 10**6)
PATHS = st.text(st.characters(codec="utf-8", exclude_characters="$\0"), min_size=1) | st.sampled_from(
    ["${DATA}/x", "no", "1e3", "~", "2026-01-01", "a: b", "# c", "x$y"]
)


def options(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


LAYER = st.one_of(
    st.sampled_from(["relu", "sigmoid", "tanh", "lcn", {"relu": None}, {"lcn": None}]),
    st.builds(lambda units, short: {"dense": units if short else {"units": units}}, COUNT, st.booleans()),
    st.builds(lambda count, short: {"cross": count if short else {"layers": count}}, st.integers(1, 9), st.booleans()),
    st.builds(lambda share, short: {"dropout": share if short else {"share": share}}, SHARE, st.booleans()),
    st.builds(lambda kind, size: {kind: size}, st.sampled_from(["max_pool", "average_pool", "l2_pool"]), COUNT),
    st.builds(lambda pool: {"max_pool": pool}, options({"size": COUNT}, stride=COUNT | st.none())),
    st.builds(lambda pool: {"l2_pool": pool}, options({"size": COUNT}, stride=COUNT, eps=POSITIVE)),
    st.builds(lambda lcn: {"lcn": lcn}, options({}, size=st.sampled_from([3, 9]), sigma=POSITIVE, c0=POSITIVE)),
    st.builds(lambda conv: {"conv": conv}, options({"maps": COUNT, "kernel": COUNT}, stride=COUNT)),
    st.builds(
        lambda local: {"local": local}, options({"window": COUNT, "block": COUNT, "maps": COUNT, "stride": st.just(1)})
    ),
    st.builds(
        lambda block, windows, maps: {"local": {"window": block * windows, "block": block, "maps": maps}},
        st.integers(1, 10**6),
        st.integers(1, 10**6),
        COUNT,
    ),
    st.builds(lambda image: {"image": image}, options({"height": COUNT, "width": COUNT}, channels=COUNT)),
)
MODEL = options(
    {
        "layers": st.lists(LAYER, min_size=1, max_size=4),
        "loss": st.sampled_from(["square", "softmax_cross_entropy", "one_vs_all", "logistic"]),
    }
) | st.just({"python": "models/mine.py:Model"})
EQ1 = {
    "block": st.just(4),
    "window": st.integers(1, 9).map(lambda blocks: 4 * blocks),
    "maps": COUNT,
    "pool": COUNT,
    "sparsity": st.floats(0, 10),
    "eps": POSITIVE,
}
SHAPE = st.none() | st.lists(COUNT, min_size=3, max_size=3)
AUTOENCODER = options({}, **EQ1, image=SHAPE).map(lambda layer: {"autoencoder": layer})
CONTRAST = options({}, size=st.sampled_from([1, 5]), sigma=POSITIVE, c0=POSITIVE)
STACKS = options(
    {"stacks": st.lists(options({}, **EQ1, contrast=CONTRAST), min_size=2, max_size=3)},
    train=st.sampled_from([1, 2, "all", None]),
    trained=st.lists(PATHS, max_size=2),
    image=SHAPE,
)
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
            "source": st.just("csv"),
            "file": PATHS,
            "kind": st.just("classes"),
            "target": st.text(min_size=1) | st.integers(1, 10**6) | st.integers(-9, -1),
        },
        ignore=st.lists(st.text(min_size=1) | st.integers(1, 9)),
        header=st.booleans(),
        delimiter=st.sampled_from(",;|\t"),
        scale=POSITIVE,
        validation_file=PATHS | st.none(),
        test_file=PATHS | st.none(),
        validation=PART,
        test=PART,
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
    options({"name": st.just("sgd"), "rate": POSITIVE}, weight_decay=POSITIVE),
    options(
        {"name": st.sampled_from(["momentum", "caffe-momentum", "nesterov"]), "rate": POSITIVE},
        mu=SHARE,
        weight_decay=POSITIVE,
    ),
    options({"name": st.just("adagrad"), "rate": POSITIVE}, eps=POSITIVE, a0=POSITIVE),
    options({"name": st.just("adam"), "rate": POSITIVE}, beta1=SHARE, beta2=SHARE, eps=POSITIVE),
    options({"name": st.just("adamw"), "rate": POSITIVE}, beta1=SHARE, eps=POSITIVE, weight_decay=POSITIVE),
    options({"name": st.just("ftrl"), "rate": POSITIVE}, beta=POSITIVE, l1=POSITIVE, l2=POSITIVE),
)
STRATEGY = options(
    {"name": st.just("downpour"), "rule": RULE},
    batch=st.integers(1, 1000),
    n_fetch=st.integers(1, 100),
    n_push=st.integers(1, 100),
    literal=st.booleans(),
    overlap=st.booleans(),
    staleness_aware=st.booleans(),
    local_rate=POSITIVE | st.none(),
    clip_norm=POSITIVE | st.none(),
    warm_start=st.none() | options({}, samples=COUNT, loss=st.floats(-10, 10), share=SHARE),
    lease=st.integers(1000, 10**6),
) | options({"name": st.just("downpour"), "rule": RULE, "staleness": st.sampled_from([0, 1, 7])})
ELASTIC = options(
    {"name": st.just("async-measgd"), "rate": st.floats(1e-3, 0.5)},
    batch=st.integers(1, 1000),
    rho=st.floats(1e-3, 2) | st.none(),
    period=st.integers(1, 100),
    mu=SHARE | st.none(),
    nesterov=st.booleans(),
    clip_norm=POSITIVE | st.none(),
    lease=st.integers(1000, 10**6) | st.none(),
) | options({"name": st.just("async-easgd"), "rate": POSITIVE}, period=st.integers(1, 100))
ASYNCHRONOUS = options(
    {"name": st.just("async-msgd"), "rate": POSITIVE},
    batch=st.integers(1, 1000),
    mu=SHARE | st.none(),
    lease=st.integers(1000, 10**6) | st.none(),
) | options({"name": st.just("async-sgd"), "rate": POSITIVE})
DILOCO = options(
    {"name": st.just("diloco"), "inner": st.just({"name": "adamw", "rate": 0.1})},
    batch=st.integers(1, 1000),
    steps=st.integers(1, 1000),
    delay=st.just(1),
    outer=st.sampled_from([{"name": "sgd", "rate": 1.0}, {"name": "nesterov", "rate": 0.5}]),
)
BESIDE: dict[str, Any] = {
    "warm_up": st.none() | options({"samples": COUNT}, start_factor=st.floats(0, 1)),
    "scale": st.none() | options({"reference_batch": st.integers(1, 1000)}, by=st.sampled_from(["linear", "sqrt"])),
}
SCHEDULE = st.one_of(
    options({"kind": st.just("constant")}, **BESIDE),
    options({"kind": st.just("step"), "every": COUNT, "factor": POSITIVE}, **BESIDE),
    options({"kind": st.just("poly"), "power": POSITIVE}, total=COUNT, **BESIDE),
)
LIMITS = st.one_of(
    options({"epochs": POSITIVE}, wall_s=POSITIVE),
    options({"samples": COUNT}, epochs=POSITIVE),
)
WIRE = options(
    {},
    push=st.sampled_from(["fp32", "fp16", "bf16", {"name": "bf16"}]),
    pull=st.sampled_from(["fp32", "fp16", "bf16"]),
)
JOBS = (
    options(
        {
            "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
            "model": MODEL | AUTOENCODER | STACKS,
            "data": DATA,
            "strategy": STRATEGY | ELASTIC | ASYNCHRONOUS | DILOCO,
            "limits": LIMITS,
        },
        schedule=SCHEDULE,
        evaluate=options({}, every=COUNT | st.none(), keep=st.sampled_from(["best", "last"])),
        grid=st.just([1, 1]),
        seed=st.integers(0, 10**15),
        start_from=PATHS | st.none(),
        record=st.booleans(),
        wire=WIRE,
        snapshots=options({}, every_s=POSITIVE | st.none(), keep=st.integers(1, 9)),
        output=PATHS,
    )
    .filter(lambda fields: fields["strategy"]["name"] != "diloco" or not fields.get("record"))
    .filter(
        # Scaled, a rate may be too high for its rho.
        lambda fields: fields["strategy"].get("rho") is None or not fields.get("schedule", {}).get("scale")
    )
)


@examples(60)
@given(JOBS)
def test_any_job_survives_being_written_and_read(fields: dict[str, Any]) -> None:
    job = build_job(fields, Path("folder"))
    again = parse_job(job.to_yaml(), Path("folder"), "again")
    assert again == job
    assert again.digest() == job.digest()
    assert again.to_yaml() == job.to_yaml()


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("{}[]:,-&*!|>'\"%@`#?ab1 \n\t", max_size=60))
def test_any_text_is_a_job_or_a_job_error(text: str) -> None:
    with pytest.raises(JobError, match=r"^f"):
        parse_job(text, Path(), "f")


ANYTHING: list[Any] = [None, True, 0, -1, 1.5, 10**400, "", "x", "\0", [], [[]], {}, {"": None}, {"name": []}]


@given(st.data())
def test_any_value_is_valid_or_a_named_error(data: st.DataObject) -> None:
    fields = parse_job(TEXT, Path(), "f").model_dump(mode="json")
    path, inner = [], fields
    while True:
        key = data.draw(st.sampled_from(list(inner)))
        path.append(key)
        if not isinstance(inner[key], dict) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = data.draw(st.sampled_from(ANYTHING))
    try:
        build_job(fields, Path(), "f")
    except JobError as error:
        found = str(error)
    else:
        found = f"f: {path[0]}"
    assert all(line.startswith(f"f: {path[0]}") for line in found.splitlines())


def test_an_anchored_job_means_the_same_files_from_anywhere(tmp_path: Path) -> None:
    model = {"python": "models/mine.py:Mine"}
    data = {"source": "libsvm", "train": "a9a", "test": "${SOMEWHERE}/a9a.t"}
    job = small_job(tmp_path, model=model, data=data, start_from="../runs/before")
    moved = parse_job(job.anchored().to_yaml(), tmp_path / "runs" / "here", "copy")
    assert isinstance(moved.model, PythonModel)
    assert isinstance(moved.data, LibsvmData)
    assert moved.path(moved.model.file) == tmp_path / "models" / "mine.py"
    assert moved.path(moved.data.train) == tmp_path / "a9a"
    assert moved.start_from is not None
    assert moved.path(moved.start_from) == tmp_path / "../runs/before"
    assert moved.data.test == "${SOMEWHERE}/a9a.t"
    assert job.anchored().to_yaml() == moved.to_yaml()


def test_stacks_that_are_trained_already_are_anchored(tmp_path: Path) -> None:
    trained = ["runs/one", "${SOMEWHERE}/two", "/three/model.safetensors"]
    job = small_job(tmp_path, model={"stacks": [{}, {}], "trained": trained})
    moved = parse_job(job.anchored().to_yaml(), tmp_path / "runs" / "here", "copy")
    assert isinstance(moved.model, StacksModel)
    assert moved.model.trained == (str(tmp_path / "runs/one"), "${SOMEWHERE}/two", "/three/model.safetensors")
