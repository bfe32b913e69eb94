import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Network, build_network, load_python_model

CPU = select_backend("cpu")
KINDS = "dense, relu, sigmoid, tanh, embedding, image, conv, local, max_pool, average_pool, l2_pool, lcn, dropout"
KINDS += ", cross, embedding_bag, fm"
MODEL = """
from dataclasses import dataclass
import numpy as np

@dataclass
class Line:
    start: "float" = 2.0

    def parameters(self, rng):
        return {"a": np.full(1, self.start, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        out["a"][:] = 1
        return float(views["a"][0])

line = Line(3.0)

def make():
    return Line(4.0)

def make_nothing():
    return None

def make_trouble():
    return 1 / 0

class Half:
    def parameters(self, rng):
        return {}
"""


def build(layers: Any, loss: str = "softmax_cross_entropy", outputs: int = 10) -> Network:
    return build_network(layers, loss, features=64, outputs=outputs, backend=CPU)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("dens", {"units": 10})], "layer 1: 'dens' is not known, did you mean 'dense'? "
         f"(there is: {KINDS})"),
        ([("relu", {}), ("wavy", {})], f"layer 2: 'wavy' is not known (there is: {KINDS})"),
        ([("dense", {"unit": 10})], "layer 1 (dense): 'unit' is not known, did you mean 'units'? "
         "(there is: units)"),
        ([("relu", {"units": 10})], "layer 1 (relu): 'units' is not known (there is: none)"),
        ([("dense", {})], "layer 1 (dense): units is None, must be an integer of 1 or more"),
        ([("dense", {"units": 0})], "layer 1 (dense): units is 0, must be an integer of 1 or more"),
        ([("dense", {"units": 1.5})], "layer 1 (dense): units is 1.5, must be an integer of 1 or more"),
        ([("dense", {"units": True})], "layer 1 (dense): units is True, must be an integer of 1 or more"),
        ([("max_pool", {"size": 2, "stride": 0})], "layer 1 (max_pool): stride is 0, must be an integer of 1 or more"),
        ([("dropout", {})], "layer 1 (dropout): share is None, must be a number"),
        ([("dropout", {"share": 1})], "layer 1 (dropout): share is 1, must be from 0 to below 1"),
        ([("local", {"window": 5, "block": 2, "maps": 1})],
         "layer 1 (local): window is 5, must be a multiple of the stride, 2"),
        ([("local", {"window": 5, "block": 2})], "layer 1 (local): maps is None, must be an integer of 1 or more"),
        ([("image", {"height": 8, "width": 8}), ("local", {"window": 6, "block": 1, "maps": 1, "stride": 3})],
         "layer local1: has a stride of 3 pixels, but gets images of 8 x 8, not multiples of it"),
        ([("lcn", {"size": 4})], "layer 1 (lcn): size is 4, must be odd"),
        ([("lcn", {"c0": 0.0})], "layer 1 (lcn): c0 is 0.0, must be above 0"),
        ([("conv", {"maps": 2, "kernel": 3})], "layer conv1: takes images, but gets 64 numbers per sample; a layer "
         "{image: {height: ..., width: ..., channels: ...}} before it says how they lie"),
        ([("image", {"height": 8, "width": 8}), ("max_pool", {"size": 9})],
         "layer max_pool1: has windows of 9 x 9 pixels, but gets images of 8 x 8"),
        ([("dense", {"units": 9})], "layer dense1: has 9 outputs, expected 10 classes"),
        ([("relu", {})], "a network needs at least one dense layer, conv or local: there is nothing to train"),
    ],
)  # fmt: skip
def test_wrong_descriptions_are_named(layers: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(layers)
    assert str(caught.value) == message


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(ModelError, match=r"^loss: 'squared' is not known, did you mean 'square'\?"):
        build([("dense", {"units": 10})], "squared")


def test_square_loss_requires_the_targets_width() -> None:
    with pytest.raises(ModelError, match="last layer has 9 outputs, the data's targets have 3"):
        build([("dense", {"units": 9})], "square", outputs=3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


@pytest.mark.parametrize(("name", "start"), [("line", 3.0), ("Line", 2.0), ("make", 4.0)])
def test_an_object_a_class_or_a_function(file: Path, name: str, start: float) -> None:
    model, sha256 = load_python_model(file, name)
    assert model.parameters(np.random.default_rng(0))["a"][0] == start
    assert sha256 == hashlib.sha256(MODEL.encode()).hexdigest()


def test_nothing_is_written_and_the_module_takes_no_name(file: Path) -> None:
    before = set(sys.path)
    load_python_model(file, "line")
    assert [path.name for path in file.parent.iterdir()] == ["mine.py"]
    assert "mine" not in sys.modules
    assert set(sys.path) == before | {str(file.parent)}


def test_modules_beside_the_file_are_found(file: Path) -> None:
    (file.parent / "beside_the_model.py").write_text("START = 3.0\n")
    file.write_text("from beside_the_model import START\n" + MODEL)
    model, _ = load_python_model(file, "line")
    assert model.parameters(np.random.default_rng(0))["a"][0] == 3.0


def test_changed_file_is_reloaded(file: Path) -> None:
    _, old = load_python_model(file, "line")
    file.write_text(MODEL.replace("3.0", "5.0"))
    model, new = load_python_model(file, "line")
    assert model.parameters(np.random.default_rng(0))["a"][0] == 5.0
    assert new != old


def failure(path: Path, name: str = "line") -> str:
    with pytest.raises(ModelError) as caught:
        load_python_model(path, name)
    return str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.py"
    assert failure(path) == f"{path}: cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef f(:\n    pass\n", ", line 2: not Python (invalid syntax)"),
        ("import numpy\n\nx = 1 / 0\n", ", line 3: importing it raised ZeroDivisionError: division by zero"),
        ("def f():\n    raise ValueError('a\\nb')\n\nf()\n", ", line 2: importing it raised ValueError: a b"),
        ("import sys\nsys.exit(3)\n", ", line 2: importing it raised SystemExit: 3"),
        ("\nassert False\n", ", line 2: importing it raised AssertionError"),
        ("\nimport no_such_package\n", ", line 2: importing it raised ModuleNotFoundError: "
         "No module named 'no_such_package'"),
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n", ", line 1: importing it raised "
         "ModuleNotFoundError: No module named 'torch'; pip install 'dbelief[torch]'"),
    ],
)  # fmt: skip
def test_broken_file_is_named_with_its_line(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    before = set(sys.modules)
    assert failure(path) == f"{path}{message}"
    assert not [module for module in set(sys.modules) - before if module.startswith("_dbelief")]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(b"x = '\xff\xfe'\n")
    assert "not Python" in failure(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lime", ": 'lime' is not known, did you mean 'line'?"),
        ("Half", ": 'Half' (Half) has no method loss_and_gradient(views, batch, out)"),
        ("np", ": 'np' (module) has no method parameters(rng)"),
        ("make_nothing", ": 'make_nothing' (NoneType) has no method parameters(rng)"),
        ("make_trouble", ", line 25: make_trouble() raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_name_that_gives_no_model(file: Path, name: str, message: str) -> None:
    assert failure(file, name).startswith(f"{file}{message}")


def test_a_class_with_required_arguments(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Net:\n    def __init__(self, width):\n        pass\n")
    assert "Net() raised TypeError" in failure(path, "Net")
