"""Job files that are none, wrong fields, fields that contradict each other, and models that cannot be trained."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import save

from tests.negative.harness import Wrong, job

CHECK = "job check job.yaml"


def field(name: str, setting: str, says: str) -> Wrong:
    """A good job file with one field replaced."""
    return Wrong(name, f"{CHECK} --set {shlex.quote(setting)}", f"job.yaml(, line [0-9]+)?: {says}")


def text(name: str, content: str | bytes, says: str) -> Wrong:
    """A job file of this content."""
    return Wrong(name, CHECK, f"job.yaml{says}", files={"job.yaml": content})


FILES = [
    Wrong("no such file", "train jop.yaml", r"jop\.yaml: no such file; did you mean job\.yaml\?"),
    Wrong("a folder", "train folder", "folder: is a directory, not a job file", files={"folder/": ""}),
    Wrong("not UTF-8", "coordinator job.yaml", r"job\.yaml: is not UTF-8: byte 0xff at offset 0",
          files={"job.yaml": b"\xff\xfe"}),
    text("empty", "", ": is empty; a job is a mapping with name, model, data, strategy and more"),
    text("not YAML", "name: [unclosed\n", ", line 2, column 1: not YAML: .*"),
    text("a list", "- name\n- model\n", ": a job is a mapping with .* and more, not a list"),
    text("a key twice", job() + "name: again\n", ", line 6, column 1: 'name' is given twice, first on line 1"),
    text("too large", "#" * (1 << 20) + "\n", r": is larger than 1,048,576 bytes, so it is no job file"),
    text("a missing section", job(data=None), r": data: missing; must be .*"),
    text("no end", job(limits=None), r": limits: needs at least one of epochs, samples, wall_s, or the job .*"),
    text(
        "a batch method without an end",
        job(limits=None, strategy="{name: sandblaster}"),
        r": limits: needs at least one of epochs, samples, wall_s, or one of strategy's own, or the job .*",
    ),
    text("an unknown field", job(shard="3"), r", line 6: shard: no such field, did you mean shards\? \(allowed: .*\)"),
    text("another system's name", job(strategy="{name: downpour, rule: {name: sgd, lr: 0.1}}"),
         r", line 4: strategy\.rule\.lr: no such field, did you mean rate\? .*"),
]  # fmt: skip
FIELDS = [
    field("text for a number", "shards=two", "shards: must be a whole number .*, not 'two'"),
    field("a number for text", "name=7", r"name: must be .*, not 7 \(quotes make it text\)"),
    field("no shards", "shards=0", "shards: must be a whole number from 1 to 256, not 0"),
    field("a rate below zero", "strategy.rule.rate=-0.1",
          r"strategy\.rule\.rate: must be a number above 0.*, not -0\.1"),
    field("a rate that is not a number", "strategy.rule.rate=.nan", r"strategy\.rule\.rate: must be .*, not nan"),
    field("an unknown rule", "strategy.rule.name=adagard", r"strategy\.rule\.name: .*; did you mean adagrad\?"),
    field("the dial at 0 and n_push", "strategy={name: downpour, rule: {name: sgd, rate: 1}, staleness: 0, n_push: 2}",
          r"strategy\.staleness: 0 needs n_push 1, n_fetch 1 and overlap false, not n_push 2"),
    field("the dial and staleness_aware", "strategy={name: downpour, rule: {name: sgd, rate: 1}, staleness: 1, "
          "staleness_aware: true}", r"strategy\.staleness_aware: needs staleness null, not 1: .*"),
    field("a lease below a batch", "strategy.lease=3", r"strategy\.lease: must be at least one batch, 32 samples, .*"),
    field("epochs without data", "data={source: none}",
          r"limits\.epochs: there is no epoch where data\.source is none.*"),
    field("a job without an end", "limits={patience: 3}", "limits: needs at least one of epochs, samples, wall_s, .*"),
    field("a grid of three axes", "grid=[2, 2, 2]", r"grid: must be \[n\] or \[rows, columns\], not 3 numbers"),
    field("a layer that is not known", "model.layers=[{dense: 3}, rellu]", r"model\.layers\.1(\.rellu)?: .*relu.*"),
    field("an unknown field by --set", "strategy.bach=3", r"strategy\.bach: no such field, did you mean batch\? .*"),
    Wrong("--set without =", f"{CHECK} --set shards", "--set shards: wanted FIELD=VALUE, for example .*"),
    Wrong("--set of no field", f"{CHECK} --set =3", "job.yaml: '' is not the dotted path of a field, such as .*"),
    Wrong("--set below a word", f"{CHECK} --set name.x=3", r"job\.yaml: name\.x: 'x' cannot be set in something .*"),
]  # fmt: skip

MODEL = """
import numpy as np

class Own:
    def parameters(self, rng):
        return {"w": PARAMETERS}

    def loss_and_gradient(self, views, batch, out):
        out["w"][:] = GRADIENT
        return LOSS
"""


def model(name: str, says: str, own: str = "Own", command: str = CHECK, code: int = 2, **parts: str) -> Wrong:
    """A model of a person's own with one thing wrong."""
    source = MODEL
    for part, expression in {"PARAMETERS": "np.zeros(64, np.float32)", "GRADIENT": "0", "LOSS": "1.0", **parts}.items():
        source = source.replace(part, expression)
    files = {"job.yaml": job(model=f"{{python: 'own.py:{own}'}}"), "own.py": source}
    return Wrong(name, command, says, code, files=files)


MODELS = [
    Wrong("a model that does not fit its data", "train job.yaml --set 'model.layers=[{dense: 7}]'",
          "layer dense1: has 7 outputs, expected 10 classes"),
    Wrong("no such Python file", CHECK, r".*own\.py: cannot be read \(No such file or directory\)",
          files={"job.yaml": job(model="{python: 'own.py:Own'}")}),
    Wrong("a Python file that is none", CHECK, r".*own\.py, line 1: not Python \(.*\)",
          files={"job.yaml": job(model="{python: 'own.py:Own'}"), "own.py": "class Own\n"}),
    model("a file without the object", r".*own\.py: 'Onw' is not known, did you mean 'Own'\? .*", own="Onw"),
    model("an object that is no model", r".*own\.py: 'np' \(module\) has no method parameters\(rng\)", own="np"),
    Wrong("a file that raises", CHECK, r".*own\.py, line 1: importing it raised ZeroDivisionError: .*",
          files={"job.yaml": job(model="{python: 'own.py:Own'}"), "own.py": "1 / 0\n"}),
    model("parameters that raise", r"parameters\(rng\): ZeroDivisionError: .*own\.py, line 6\)", PARAMETERS="1 / 0"),
    model("parameters of another type", r"parameters\(rng\): 'w' is float64, wanted float32",
          PARAMETERS="np.zeros(64)"),
    model("no parameters", "the model has no parameters", PARAMETERS="np.zeros(0, np.float32)"),
    model("parameters that hold NaN", r"initial value of 'w' holds nan \(64 of 64 numbers are not finite\)",
          PARAMETERS="np.full(64, np.nan, np.float32)", code=1),
    model("a gradient of another shape", r"loss_and_gradient on the first 32 training samples \(.*\): ValueError.*",
          GRADIENT="np.zeros(7)"),
    model("a gradient that holds NaN", r"gradient of 'w' holds nan \(64 of 64 numbers are not finite\)",
          GRADIENT="np.nan", code=1),
    model("a loss that is no number", r"loss_and_gradient on the first 32 training samples \(.*\): ValueError: .*",
          LOSS="'low'"),
    model("a loss that is NaN", "the loss of the first 32 training samples is nan", LOSS="np.nan", code=1),
]  # fmt: skip


def start(name: str, run: str, says: str, command: str = "train job.yaml", **files: str | bytes) -> Wrong:
    """A job that starts from runs/RUN, which holds these files."""
    held = {f"runs/{run}/{file.replace('_', '.')}": content for file, content in files.items()}
    return Wrong(name, f"{command} --set start_from=runs/{run}", says, files=held)


def tensors(**shapes: tuple[int, ...]) -> bytes:
    """A model file with tensors of these shapes."""
    return save({name.replace("_", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()})


NO_RUN = r"is no run folder: it holds no job\.yaml; a relative path starts from the job file's folder"
OTHER = r"start_from: .*/runs/first: holds another model: tensor"
ITSELF = r"is moved aside where a new run named wrong begins; give this run another name, .*"
STARTS = [
    start("a start from nowhere", "first", rf"start_from: .*/runs/first {NO_RUN}"),
    start("a start from nowhere, checked", "first", rf"start_from: .*/runs/first {NO_RUN}", CHECK),
    start("a start from a folder that is no run", "first", rf"start_from: .*/runs/first {NO_RUN}",
          model_safetensors=""),
    Wrong("a start from an unset variable", f"{CHECK} --set 'start_from=${{NO_SUCH_RUN}}'",
          r"path '\$\{NO_SUCH_RUN\}' of the job file: the environment variable NO_SUCH_RUN is not set"),
    start("a start from a run without a result", "first",
          r"start_from: .*/runs/first: holds neither model\.safetensors nor a complete snapshot set", job_yaml=job()),
    start("a start from a torn model", "first", r"start_from: .*/runs/first/model\.safetensors: cannot be read: .*",
          job_yaml=job(), model_safetensors="torn"),
    start("a start from tensors of other shapes", "first",
          rf"{OTHER} 'dense1\.weight' is \(64, 7\) there, and \(64, 10\) in the job's",
          job_yaml=job(), model_safetensors=tensors(dense1_weight=(64, 7), dense1_bias=(7,))),
    start("a start from other tensors, checked", "first",
          rf"{OTHER} 'dense1\.bias' is missing there, and \(10,\) in the job's", CHECK,
          job_yaml=job(), model_safetensors=tensors(dense1_weight=(64, 10))),
    start("a start from itself", "wrong", rf"start_from: .*/runs/wrong {ITSELF}",
          job_yaml=job(), model_safetensors=tensors(dense1_weight=(64, 10), dense1_bias=(10,))),
    start("a start from itself, checked", "wrong", rf"start_from: .*/runs/wrong {ITSELF}", CHECK),
    start("a start from itself, by hand", "wrong", rf"start_from: .*/runs/wrong {ITSELF}",
          "coordinator job.yaml --listen 127.0.0.1:0", job_yaml=job()),
    start("a start from the run before", "wrong.1", r"start_from: .*/runs/wrong\.1: holds neither model.safetensors .*",
          job_yaml=job()),
    start("a start that does not count", "nowhere", r".*/runs/wrong: no run to resume", "train job.yaml --resume"),
]  # fmt: skip
ROWS = [*FILES, *FIELDS, *MODELS, *STARTS]


@pytest.mark.parametrize("wrong", ROWS, ids=str)
def test_a_wrong_job_is_refused(wrong: Wrong, assert_refused: Callable[[Wrong], None]) -> None:
    assert_refused(wrong)
