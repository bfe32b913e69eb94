"""Every wrong field is refused with its path, what is allowed, and the nearest right name."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbelief.errors import JobError
from dbelief.job import build_job, parse_job

GOOD = """
name: digits
model: {layers: [{dense: 64}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, rule: {name: adagrad, rate: 0.1}}
limits: {epochs: 10}
"""
IDX = "{source: idx, folder: mnist, validation: 0}"


def strategy(rest: str) -> str:
    return "strategy: {name: downpour, rule: {name: sgd, rate: 0.1}, " + rest + "}"


def changed(lines: str) -> str:
    """GOOD, with the given top-level lines in place of its own; `-name` takes one out."""
    fields = dict(line.split(":", 1) for line in GOOD.strip().splitlines())
    for line in lines.splitlines():
        if line.startswith("-"):
            del fields[line[1:]]
        else:
            key, value = line.split(":", 1)
            fields[key] = value
    return "\n".join(f"{key}:{value}" for key, value in fields.items())


def message(text: str) -> str:
    with pytest.raises(JobError) as caught:
        parse_job(text, Path(), "job.yaml")
    return str(caught.value)


def test_the_job_that_the_table_changes_is_right() -> None:
    assert parse_job(GOOD, Path(), "job.yaml").name == "digits"


# The change to a right job, and words of the one line that must come of it.
WRONG = [
    ("-name", "name: missing; must be 1 to 64 letters"),
    ("name: a b", "name: must be 1 to 64 letters, digits, dots, underscores and hyphens*'a b'"),
    ("name: ..", "name: must be 1 to 64 letters*the first a letter or a digit*'..'"),
    ("name: " + "n" * 65, "name: must be 1 to 64 letters"),
    ("name: 3", "name: *not 3 (quotes make it text)"),
    ("nme: x\n-name", "nme: no such field, did you mean name?"),
    ("-data", "data: missing; must be a mapping with source, one of digits, idx, npz"),
    ("data: digits", "data: must be a mapping with source, one of digits*not 'digits'"),
    ("data: {}", "data.source: missing; must be one of digits, idx, npz, libsvm, csv, synthetic, none"),
    (
        "data: {source: csv, file: x, kind: classes, target: [a, b]}",
        "data.target: must be one column where kind is classes, not 2",
    ),
    (
        "data: {source: csv, file: x, kind: classes, target: y, standardize: true, scale: 2}",
        "data.scale: must be 1 where standardize is true, not 2",
    ),
    (
        "data: {source: csv, file: x, kind: classes, target: 0}",
        "data.target.0: must be the name of a column, or its number from 1, or from -1 for the last backwards, not 0*",
    ),
    ("data: {source: csv, file: x, kind: classes, target: []}", "data.target: must be a list with at least one item"),
    (
        "data: {source: csv, file: x, kind: classes, target: {a: b}}",
        "data.target: must be a column, or a list of columns: names, or numbers from 1, or from -1*, not a mapping",
    ),
    (
        'data: {source: csv, file: x, kind: classes, target: a, delimiter: ":"}',
        "data.delimiter: must be one of a comma, a semicolon, a vertical bar and a tab, not ':'",
    ),
    (
        "data: {source: csv, file: x, kind: regression, target: a, validation: 0.5, test: 0.5}",
        "data.test: with validation must leave samples to train on, but both are 1 of all",
    ),
    ("data: {source: digit}", "data.source: must be one of digits, *not 'digit'; did you mean digits?"),
    ("data: {source: [a]}", "data.source: must be one of digits, *not a list"),
    ("data: {source: idx, folder: '${X'}", "data.folder: must be a path*${NAME}*environment variable*'${X'"),
    ("data: {source: idx, folder: ''}", "data.folder: must be a path"),
    (
        "data: {source: idx, folder: m, validation: -1}",
        "data.validation: must be a whole number from 0*not -1",
    ),
    ("data: {source: idx, folder: m, validation: 0.1}", "data.validation: must be a whole number*not 0.1"),
    ("data: {source: npz, file: m, test: 1.0}", "data.test: must be a share*or a whole number*not 1.0"),
    ("data: {source: npz, file: m, test: true}", "data.test: must be a share*not true"),
    ("data: {source: npz, file: m, test: 0.6, validation: 0.5}", "data.test: *leave samples to train on*1.1"),
    ("data: {source: npz, file: f, train: m}", "data.train: no such field*(allowed: source, file"),
    (
        "data: {source: libsvm, train: a, features: 0}",
        "data.features: must be a whole number from 1*null*not 0",
    ),
    (
        "data: {source: synthetic, kind: class, samples: 100, features: 3, noise: 1}",
        "data.kind: must be one of classes, regression, not 'class'; did you mean classes?",
    ),
    (
        "data: {source: synthetic, kind: classes, samples: 99, features: 3, noise: 1, classes: 10}",
        "data.samples: must be at least 10 per class, here 100, not 99",
    ),
    ("model: {autoencoder: {lambda: 1}}", "model.autoencoder.lambda: no such field, did you mean sparsity?"),
    ("model: {autoencoder: {window: 10}}", "model.autoencoder.window: must be a multiple of block, 4, not 10"),
    ("model: {autoencoder: {image: [8, 8]}}", "model.autoencoder.image: must be a list of three whole numbers"),
    ("model: {stacks: [{}]}", "model.stacks: must be a list with at least two items; one layer is model.autoencoder"),
    ("model: {stacks: {}}", "model.stacks: must be a list, each a mapping with window, block, *not a mapping"),
    ("model: {stacks: [{}, {window: 10}]}", "model.stacks.1.window: must be a multiple of block, 4, not 10"),
    ("model: {stacks: [{contrast: {size: 4}}, {}]}", "model.stacks.0.contrast.size: must be odd, not 4"),
    ("model: {stacks: [{}, {}], train: 3}", "model.train: must be a stack from 1 to 2, or all, not 3"),
    ("model: {stacks: [{}, {}], train: al}", "model.train: must be a whole number*or all, or null, not 'al'"),
    ("model: {stacks: [{}, {}], trained: runs/a}", "model.trained: must be a list, each a path*, not 'runs/a'"),
    ("model: {layers: [], loss: square}", "model.layers: must be a list with at least one item"),
    ("model: {layers: relu, loss: square}", "model.layers: must be a list, each one of dense*not 'relu'"),
    ("model: {layers: [rellu], loss: square}", "model.layers.0.rellu: no such field, did you mean relu?"),
    (
        "model: {layers: [relu, {dense: 0}], loss: square}",
        "model.layers.1.dense.units: must be a whole number*not 0",
    ),
    ("model: {layers: [dense], loss: square}", "model.layers.0.dense.units: missing; must be a whole number"),
    ("model: {layers: [{dense: 3, relu: }], loss: square}", "model.layers.0: must name exactly one layer"),
    (
        "model: {layers: [max_pool], loss: square}",
        "model.layers.0.max_pool.size: missing; must be a whole number from 1*",
    ),
    (
        "model: {layers: [{conv: 3}], loss: square}",
        "model.layers.0.conv: must be a mapping with maps, kernel, stride*not 3",
    ),
    (
        "model: {layers: [{dropout: 1.0}], loss: square}",
        "model.layers.0.dropout.share: must be a number from 0 to below 1, not 1.0",
    ),
    (
        "model: {layers: [{local: {window: 20, block: 3, maps: 8}}], loss: square}",
        "model.layers.0.local.window: must be a multiple of the stride, 3, not 20",
    ),
    ("model: {layers: [{lcn: {size: 4}}], loss: square}", "model.layers.0.lcn.size: must be odd, not 4"),
    ("model: {layers: [7], loss: square}", "model.layers.0: must be one of dense with its units, relu*not 7"),
    ("model: {layers: [{dense: 3}], loss: softmax}", "model.loss: *did you mean softmax_cross_entropy?"),
    ("model: {zoo: lenett}", "model.zoo: must be one of lenet, alexnet, *, not 'lenett'; did you mean lenet?"),
    ("model: {zoo: lenet, loss: square}", "model.loss: no such field*(allowed: zoo)"),
    (
        "model: {layers: [{conv: {maps: 3, kernel: 3, padding: -1}}], loss: square}",
        "model.layers.0.conv.padding: must be a whole number from 0*not -1",
    ),
    (
        "model: {layers: [{max_pool: {size: 2, padding: 2}}], loss: square}",
        "model.layers.0.max_pool.padding: must be less than the size, 2, not 2",
    ),
    (
        "model: {layers: [{max_pool: {size: 2, ceil_mode: 1}}], loss: square}",
        "model.layers.0.max_pool.ceil_mode: must be true or false, not 1",
    ),
    ("model: {pyton: 'a.py:b'}", "model.pyton: no such field, did you mean python?"),
    ("model: {python: a.py}", "model.python: must be file.py:name, not 'a.py'"),
    ("model: {python: 'a.py:b', loss: square}", "model.loss: no such field*(allowed: python)"),
    ("strategy: {name: downpur, rule: {name: sgd, rate: 1}}", "strategy.name: *did you mean downpour?"),
    ("strategy: downpour", "strategy: must be a mapping with name, one of downpour, sandblaster*not 'downpour'"),
    (
        "strategy: {name: downpour}",
        "strategy.rule: missing; must be a mapping with name, one of sgd, momentum",
    ),
    (
        "strategy: {name: downpour, rule: {name: adagrd, rate: 1}}",
        "strategy.rule.name: must be one of sgd*'adagrd'; did you mean adagrad?",
    ),
    (
        "strategy: {name: downpour, rule: {name: sgd, lr: 1}}",
        "strategy.rule.lr: no such field, did you mean rate?",
    ),
    (
        "strategy: {name: downpour, rule: {name: sgd, rate: 0}}",
        "strategy.rule.rate: must be a number above 0, not 0",
    ),
    (
        "strategy: {name: downpour, rule: {name: sgd, rate: .nan}}",
        "strategy.rule.rate: must be a number above 0",
    ),
    ("strategy: {name: downpour, rule: {name: sgd, rate: fast}}", "strategy.rule.rate: *not 'fast'"),
    (
        "strategy: {name: downpour, rule: {name: sgd, rate: 1, mu: 0.5}}",
        "strategy.rule.mu: no such field*(allowed: name, rate, weight_decay)",
    ),
    (
        "strategy: {name: downpour, rule: {name: adam, rate: 1, beta2: 1}}",
        "strategy.rule.beta2: must be a number from 0 to below 1, not 1",
    ),
    (strategy("batch: 0"), "strategy.batch: must be a whole number from 1*not 0"),
    (strategy("batch: 2.5"), "strategy.batch: must be a whole number*not 2.5"),
    (strategy("overlap: yes"), "strategy.overlap: must be true or false, not 'yes'"),
    (
        "strategy: {name: async-easgd, rate: 0.1, mu: 0.5}",
        "strategy.name: must be async-measgd where mu or nesterov is given: async-easgd has no velocity",
    ),
    ("strategy: {name: async-easgd, rate: 0.5, rho: 3}", "strategy.rho: must be at most 1 / rate, 2: they would move"),
    ("strategy: {name: async-easgd, rate: 0.5, lease: 3}", "strategy.lease: must be at least one batch, 32 samples"),
    (
        "strategy: {name: async-sgd, rate: 0.1, mu: 0.5}",
        "strategy.name: must be async-msgd where mu is given: async-sgd has no velocity",
    ),
    (
        "strategy: {name: hogwild-sgd, rate: 0.5}\nrecord: true",
        "record: must be false with hogwild-sgd: pushes that run side by side have no order to replay",
    ),
    ("strategy: {name: async-msgd, rate: 0.5, mu: 1}", "strategy.mu: must be a number from 0 to below 1*, not 1"),
    ("strategy: {name: async-sgd, rate: 0.5, lease: 3}", "strategy.lease: must be at least one batch, 32 samples"),
    ("strategy: {name: async-sgd, rate: 1, n_push: 2}", "strategy.n_push: no such field"),
    ("strategy: {name: easgd, rate: 0.5, period: 2}", "strategy.period: must be 1 with easgd, not 2"),
    ("strategy: {name: async-measgd, rate: -1}", "strategy.rate: must be a number above 0, not -1"),
    ("strategy: {name: async-easgd}", "strategy.rate: missing; must be a number above 0"),
    (
        "strategy: {name: sync-easgd, rate: 0.5, form: 2}\nrecord: true",
        "record: must be false with sync-easgd in form 2: there is no order of exchanges to replay",
    ),
    (
        "strategy: {name: downpour, rule: {name: sgd, rate: 1, weight_decay: -1}}",
        "strategy.rule.weight_decay: must be a number of at least 0, not -1",
    ),
    (strategy("staleness: -1"), "strategy.staleness: must be a whole number from 0 to 1,000,000, or null, not -1"),
    (strategy("staleness: 1.5"), "strategy.staleness: must be a whole number*, or null, not 1.5"),
    (strategy("staleness: 0, n_push: 2"), "strategy.staleness: 0 needs n_push 1*not n_push 2"),
    (strategy("staleness: 2, n_push: 3"), "strategy.staleness: *or at least 3 with n_push 3, n_fetch 1, not 2"),
    (strategy("staleness: 4, n_push: 3, n_fetch: 3"), "strategy.staleness: *at least 5*n_fetch 3, not 4"),
    (strategy("staleness: 6, n_push: 3, n_fetch: 3, overlap: true"), "strategy.staleness: *at least 7*true, not 6"),
    (strategy("staleness: 0, staleness_aware: true"), "strategy.staleness_aware: needs staleness null, not 0*"),
    (strategy("staleness: 3, staleness_aware: true"), "strategy.staleness_aware: needs staleness null, not 3*"),
    (strategy("staleness: 0, n_fetch: 4, overlap: true"), "strategy.staleness: *not n_fetch 4, overlap true"),
    (strategy("batch: 64, lease: 63"), "strategy.lease: must be at least one batch, 64 samples*not 63"),
    (
        strategy("warm_start: {share: 1.5}"),
        "strategy.warm_start.share: must be a number from 0 to 1, not 1.5",
    ),
    (strategy("clip_norm: -1"), "strategy.clip_norm: must be a number above 0, or null, not -1"),
    ("batch: 32", "batch: no such field, did you mean strategy.batch?"),
    ("lr: 0.1", "lr: no such field, did you mean strategy.rule.rate or strategy.rate or strategy.outer.rate?"),
    ("schedule: {kind: steps, every: 3, factor: 0.1}", "schedule.kind: *did you mean step?"),
    ("schedule: {kind: step, every: 0, factor: 0.1}", "schedule.every: must be a whole number from 1*not 0"),
    (
        "schedule: {kind: constant, warm_up: {samples: 9, start_factor: 1.5}}",
        "schedule.warm_up.start_factor: must be a number from 0 to 1, not 1.5",
    ),
    (
        "schedule: {kind: constant, scale: {reference_batch: 32, by: liner}}",
        "schedule.scale.by: must be one of linear, sqrt, not 'liner'; did you mean linear?",
    ),
    (
        "schedule: {kind: poly, power: 1}\nlimits: {wall_s: 9}",
        "schedule.total: must be given where limits has",
    ),
    ("limits: {}", "limits: needs at least one of epochs, samples, wall_s"),
    ("limits: {epochs: 0}", "limits.epochs: must be a number above 0, or null, not 0"),
    (
        "limits: {epochs: 1, validation_accuracy: 97}",
        "limits.validation_accuracy: *at most 1, or null, not 97",
    ),
    ("limits: {epochs: 1, patience: 3}\ndata: " + IDX, "limits.patience: needs validation data"),
    ("data: {source: none}", "limits.epochs: there is no epoch where data.source is none"),
    ("evaluate: {keep: bst}", "evaluate.keep: must be one of best, last, or null, not 'bst'; did you mean best?"),
    ("divergence: {factor: 1}", "divergence.factor: must be a number above 1, not 1"),
    ("grid: [2, 2, 2]", "grid: must be [n] or [rows, columns], not 3 numbers"),
    (
        "wire: {push: bf17}",
        "wire.push: must be one of fp32, fp16, bf16, int8, int4, one-bit, threshold, top-k, or a mapping*, not 'bf17'",
    ),
    ("wire: {push: {name: bf17}}", "wire.push.name: must be one of fp32, fp16, *not 'bf17'; did you mean bf16?"),
    (
        "wire: {push: [bf16]}",
        "wire.push: must be one of fp32, *or a mapping with name and tau, share or decay, not a list",
    ),
    ("wire: {push: threshold}", "wire.push: needs tau with threshold: {name: threshold, tau: 1.0e-3}"),
    ("wire: {push: {name: one-bit, tau: 0.1}}", "wire.push.tau: must be left out with one-bit: only threshold has one"),
    ("wire: {push: {name: int8, share: 0.1}}", "wire.push.share: must be left out with int8: only top-k has one"),
    (
        "strategy: {name: diloco, inner: {name: sgd, rate: 0.1}, quorum: 2}\ngrid: [2]",
        "grid: must be [1] with strategy.quorum, not [2]: ranks have one clock",
    ),
    ("wire: {push: {name: int4, decay: 0.9}}", "wire.push.decay: must be left out with int4: only top-k has one"),
    ("wire: {push: {name: top-k, tau: 0.1}}", "wire.push.tau: must be left out with top-k: only threshold has one"),
    ("wire: {push: {name: top-k, share: 2}}", "wire.push.share: must be a number from 0.00025 to 1, or null, not 2"),
    ("wire: {pull: top-k}", "wire.pull: must be one of fp32, fp16, bf16, not top-k: what it leaves out"),
    ("wire: {push: {name: threshold, tau: 0}}", "wire.push.tau: must be a number from 1e-37 to 1e+37, or null, not 0"),
    (
        "wire: {pull: one-bit}",
        "wire.pull: must be one of fp32, fp16, bf16, not one-bit: what it leaves out has to come",
    ),
    ("wire: {pull: {name: threshold, tau: 0.1}}", "wire.pull: must be one of fp32, fp16, bf16, not threshold: what it"),
    ("wire: {pull: float16}", "wire.pull: must be one of fp32, fp16, bf16, not 'float16'"),
    (
        "strategy: {name: async-easgd, rate: 0.5}\nwire: {push: one-bit}",
        "wire.push: must be one of fp32, fp16, bf16 with async-easgd, not one-bit: a worker sends its weights",
    ),
    (
        "strategy: {name: sync-sgd, rule: {name: sgd, rate: 0.1}}\nwire: {pull: bf16}",
        "wire: must be left out with sync-sgd among the workers: reduction.wire is theirs",
    ),
    ("strategy: {name: sandblaster}\nwire: {push: fp16}", "wire: must be left out with sandblaster: of a difference"),
    ("grid: [2, 1]\nrecord: true", "record: must be false with a model over 2 ranks: it is not replayed"),
    ("grid: [0]", "grid.0: must be a whole number from 1 to 16,384, not 0"),
    ("grid: []", "grid: must be a list with at least one item"),
    ("grid: 1", "grid: must be a list, each a whole number*not 1"),
    ("shards: 257", "shards: must be a whole number from 1 to 256, not 257"),
    ("shards: 9" + "9" * 100, "shards: must be a whole number from 1 to 256, not a very large number"),
    ("replicas: -1", "replicas: must be a whole number from 0 to 16,384, not -1"),
    ("workers: 3", "workers: no such field, did you mean replicas?"),
    ("device: gpu", "device: must be one of auto, cpu, cuda, not 'gpu'; did you mean cuda?"),
    ("snapshots: {keep: 0}", "snapshots.keep: must be a whole number from 1*not 0"),
    ("deadlines: null", "deadlines: must be a mapping with beat_s, lease_s, progress_s, join_s, not null"),
    ("output: 3", "output: must be a path, or a URL, not 3"),
    ('"a\\nb": 3', "'a\\nb': no such field"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_a_wrong_field_is_named_on_one_line(change: str, words: str) -> None:
    found = message(changed(change))
    assert len(found.splitlines()) == 1
    assert re.search(r"^job\.yaml(, line \d+)?: " + ".*".join(map(re.escape, words.split("*"))), found), found
    for jargon in ("http", "pydantic", "Input should", "validator", "type=", "union", "Extra"):
        assert jargon not in found


def test_all_errors_are_listed_in_file_order_with_lines() -> None:
    text = """\
name: digits
model:
  layers: [{dense: 0}, sigmoit]
  loss: square
data: {source: digits}
shard: 3
strategy:
  name: downpour
  rule:
    name: sgd
    rat: 0.1
limits:
  epochs: ten
"""
    lines = message(text).splitlines()
    starts = [
        "job.yaml, line 3: model.layers.0.dense.units: ",
        "job.yaml, line 3: model.layers.1.sigmoit: ",
        "job.yaml, line 6: shard: no such field, did you mean shards?",
        "job.yaml, line 11: strategy.rule.rat: no such field, did you mean rate?",
        "job.yaml, line 13: limits.epochs: must be a number above 0, or null, not 'ten'",
    ]
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def test_very_many_problems_are_cut_off_with_their_number() -> None:
    layers = ", ".join(["{dense: 0}"] * 500)
    lines = message(changed(f"model: {{layers: [{layers}], loss: square}}")).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "job.yaml: and 450 more"


def test_plain_values_are_checked_without_lines() -> None:
    with pytest.raises(JobError, match=r"^here: model: missing") as caught:
        build_job({"name": "x", 5: 3}, Path(), "here")  # type: ignore[dict-item]
    assert "here: 5: must be a mapping whose keys are text" in str(caught.value)


SECTIONS = [
    "",
    "strategy",
    "strategy.rule",
    "strategy.warm_start",
    "limits",
    "evaluate",
    "snapshots",
    "deadlines",
]


@settings(deadline=None)
@given(st.sampled_from(SECTIONS), st.text(st.characters(codec="utf-8"), max_size=80))
def test_unknown_name_is_refused_with_its_path(section: str, name: str) -> None:
    name = f"{name}?"  # no field ends so
    fields: dict[str, object] = {
        "name": "x",
        "model": {"python": "a.py:b"},
        "data": {"source": "digits"},
        "limits": {"samples": 100},
        "strategy": {"name": "downpour", "rule": {"name": "sgd", "rate": 1}, "warm_start": {}},
    }
    inner = fields
    for key in section.split(".") if section else []:
        inner = inner.setdefault(key, {})  # type: ignore[assignment]
    inner[name] = 1
    with pytest.raises(JobError) as caught:
        build_job(fields, Path(), "job")
    found = str(caught.value)
    assert found.startswith(f"job: {section}{'.' if section else ''}")
    assert "no such field" in found
    assert len(found.splitlines()) == 1
