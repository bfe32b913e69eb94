"""A torch module as a model: our own layers' gradients, memory shared with the vector, and what is refused."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dbelief
from dbelief.arrays.backend import select_backend
from dbelief.checkpoint.safetensors_io import write_model
from dbelief.core.layout import Kind, Layout, SegmentSpan
from dbelief.core.whole_numbers import join
from dbelief.errors import DataError, ModelError
from dbelief.job import build_job, load_job
from dbelief.launch.train import train
from dbelief.nn import Batch, LeavesOut, build_network
from dbelief.nn.torch_model import TorchModel
from dbelief.training.initial_values import InitialValues
from dbelief.training.session import initial_values

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_where_torch_is_missing_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"^TorchModel needs torch: pip install 'dbelief\[torch\]' "):
        TorchModel(object, lambda outputs, targets: outputs)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="the torch extra is not installed")


PLAIN: dict[str, Any] = {"name": "downpour", "rule": {"name": "sgd", "rate": 0.1}}
NORMED: dict[str, Any] = {
    "name": "normed",
    "model": {"python": "normed.py:model"},
    "data": {"source": "digits"},
    "limits": {"epochs": 3},
}


@pytest.fixture
def net(torch: Any) -> Callable[[], Any]:
    """50 - 40 relu - 30 sigmoid - 20 tanh - 10."""
    nn = torch.nn
    widths, between = (50, 40, 30, 20, 10), (nn.ReLU, nn.Sigmoid, nn.Tanh)

    def build() -> Any:
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        pairs = [(layer, kind()) for layer, kind in zip(layers, between, strict=False)]
        return nn.Sequential(*itertools.chain.from_iterable(pairs), layers[-1])

    return build


def on_vector(model: TorchModel, seed: int = 0) -> tuple[Layout, np.ndarray, np.ndarray]:
    """Layout, initial values, and a gradient full of NaN."""
    drawn = model.parameters(np.random.default_rng(seed))
    layout = Layout.of(drawn)
    flat = layout.flatten(dict(drawn), np.empty(layout.size, np.float32))
    return layout, flat, np.full_like(flat, np.nan)


def batch(m: int = 64) -> Batch:
    rng = np.random.default_rng(1)
    return Batch(rng.standard_normal((m, 50), dtype=np.float32), rng.integers(0, 10, m))


@pytest.mark.torch
def test_the_gradient_is_that_of_our_own_layers(torch: Any, net: Callable[[], Any]) -> None:
    model = TorchModel(net, torch.nn.CrossEntropyLoss())
    layout, flat, gradient = on_vector(model)
    views, out = layout.views(flat), layout.views(gradient)
    layers: Any = [
        ("dense", {"units": 40}), ("relu", {}), ("dense", {"units": 30}), ("sigmoid", {}),
        ("dense", {"units": 20}), ("tanh", {}), ("dense", {"units": 10}),
    ]  # fmt: skip
    own = build_network(layers, "softmax_cross_entropy", features=50, outputs=10, backend=select_backend("cpu"))
    names = {f"dense{place // 2 + 1}": str(place) for place in (0, 2, 4, 6)}  # torch's weights are (outputs, inputs)
    ours = {
        f"{layer}.{part}": np.ascontiguousarray(views[f"{place}.{part}"].T)
        for layer, place in names.items()
        for part in ("weight", "bias")
    }
    expected = {name: np.empty_like(values) for name, values in ours.items()}
    loss = own.loss_and_gradient(ours, batch(), expected)
    assert model.loss_and_gradient(views, batch(), out) == pytest.approx(loss, rel=1e-5)
    for layer, place in names.items():
        for part in ("weight", "bias"):
            theirs, wanted = out[f"{place}.{part}"].T, expected[f"{layer}.{part}"]
            np.testing.assert_allclose(theirs, wanted, rtol=1e-4, atol=1e-6)
    total, right = own.evaluate(ours, batch())
    found, hits = model.evaluate(views, batch())
    np.testing.assert_allclose(model.last_layer(views, batch()), own.last_layer(ours, batch()), rtol=1e-5, atol=1e-6)
    assert found == pytest.approx(total, rel=1e-5)
    assert hits == right


@pytest.mark.torch
def test_an_embedding_of_whole_numbers_is_our_own_layer(torch: Any) -> None:
    """Numbers above 2^24 too, which float32 does not hold: here all but 40 are folded onto the table."""

    class Folded(torch.nn.Module):  # type: ignore[misc]  # torch is no import here
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = torch.nn.Embedding(40, 5), torch.nn.Linear(15, 10)

        def forward(self, x: Any) -> Any:
            return self.dense(self.table(x % 40).flatten(1))

    model = TorchModel(Folded, torch.nn.CrossEntropyLoss())
    layout, flat, gradient = on_vector(model)
    views, out = layout.views(flat), layout.views(gradient)
    rng = np.random.default_rng(2)
    inputs, targets = rng.integers(0, 40, (64, 3)), rng.integers(0, 10, 64)
    own = build_network(
        [("embedding", {"entries": 40, "width": 5}), ("dense", {"units": 10})],
        "softmax_cross_entropy",
        features=3,
        outputs=10,
        backend=select_backend("cpu"),
    )
    ours = {
        "embedding1.weight": views["table.weight"],
        "dense1.weight": np.ascontiguousarray(views["dense.weight"].T),
        "dense1.bias": views["dense.bias"],
    }
    expected = {name: np.empty_like(values) for name, values in ours.items()}
    loss = own.loss_and_gradient(ours, Batch(inputs, targets), expected)
    assert model.loss_and_gradient(views, Batch(inputs + 40 * 2**22, targets), out) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(out["table.weight"], expected["embedding1.weight"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(out["dense.weight"].T, expected["dense1.weight"], rtol=1e-4, atol=1e-6)


@pytest.mark.torch
def test_parameters_share_the_vectors_memory(torch: Any, net: Callable[[], Any]) -> None:
    model = TorchModel(net, torch.nn.CrossEntropyLoss())
    layout, flat, gradient = on_vector(model)
    views, out = layout.views(flat), layout.views(gradient)
    first = model.loss_and_gradient(views, batch(), out)
    kept = gradient.copy()
    for name, own in model._module.named_parameters():
        assert own.data_ptr() == views[name].ctypes.data
        assert own.grad is None, "memory of the gradients is free again"
    flat -= 0.1 * gradient
    assert model.loss_and_gradient(views, batch(), out) < first
    flat += 0.1 * kept
    again, elsewhere = layout.views(np.full_like(flat, np.nan)), layout.views(flat.copy())
    assert model.loss_and_gradient(elsewhere, batch(), again) == pytest.approx(first, rel=1e-6)
    np.testing.assert_allclose(layout.flatten(again, np.empty_like(flat)), kept, rtol=1e-3, atol=1e-6)


@pytest.mark.torch
def test_a_parameter_without_a_gradient_is_named(torch: Any) -> None:
    """In the passes that leave it out, and in no other; a gradient of 0 is one."""

    class Branches(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.zero, self.never = (torch.nn.Linear(50, 10) for _ in range(3))
            self.sometimes = torch.nn.Embedding(5, 10, sparse=True)
            self.passes = 0

        def forward(self, x: Any) -> Any:
            self.passes += 1
            y = self.used(x) + 0 * self.zero(x)
            return y if self.passes % 2 else y + self.sometimes(torch.tensor(3))

    model = TorchModel(Branches, torch.nn.CrossEntropyLoss())
    assert isinstance(model, LeavesOut)
    layout, flat, gradient = on_vector(model)
    out = layout.views(gradient)
    for left_out in (["never", "sometimes"], ["never"], ["never", "sometimes"]):
        gradient[:] = np.nan
        model.loss_and_gradient(layout.views(flat), batch(), out)
        assert {name.split(".")[0] for name in model.absent} == set(left_out)
        assert np.isfinite(gradient).all()
        assert not any(out[name].any() for name in model.absent)
    assert not np.any(out["zero.weight"])


@pytest.mark.torch
def test_initial_values_come_from_the_jobs_seed_alone(torch: Any, net: Callable[[], Any]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = TorchModel(net, torch.nn.CrossEntropyLoss())
    one, same, other = (on_vector(TorchModel(net, model._loss), seed)[1] for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.torch
def test_threads_draw_one_after_the_other(torch: Any) -> None:
    other_draws, first_has_drawn = threading.Event(), threading.Event()

    def first() -> Any:
        if outer.runs == 1:  # after the construction
            outer.other = pool.submit(TorchModel, other, torch.nn.MSELoss())
            other_draws.wait(0.05)
        return torch.nn.Linear(3, 2)

    def other() -> Any:
        other_draws.set()
        assert first_has_drawn.wait(60)
        return torch.nn.Linear(3, 2)

    outer = SimpleNamespace(runs=0, other=None)
    with ThreadPoolExecutor(1) as pool:
        model = TorchModel(first, torch.nn.MSELoss())
        expected = on_vector(model)[1]
        outer.runs = 1
        found = on_vector(model)[1]
        first_has_drawn.set()
        outer.other.result(60)
    assert np.array_equal(found, expected)


@pytest.mark.torch
def test_dropout_is_drawn_from_the_jobs_seed_and_the_batch(torch: Any) -> None:
    nn = torch.nn

    def build() -> Any:
        return nn.Sequential(nn.Linear(50, 40), nn.Dropout(0.5), nn.Linear(40, 10))

    def gradient(seed: int, data: Batch) -> np.ndarray:
        torch.manual_seed(int(np.random.default_rng().integers(2**31)))
        model = TorchModel(build, nn.CrossEntropyLoss())
        layout, flat, found = on_vector(model, seed)
        before = torch.random.get_rng_state()
        model.loss_and_gradient(layout.views(flat), data, layout.views(found))
        model.evaluate(layout.views(flat), data)
        assert torch.equal(torch.random.get_rng_state(), before)
        zeros: np.ndarray = found == 0
        return zeros

    one, again, other = (gradient(seed, batch(1)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert one.any()
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, gradient(1, Batch(batch(1).inputs + 1, batch(1).targets)))


@pytest.mark.torch
def test_tied_weights_are_saved_under_all_names(torch: Any, tmp_path: Path) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
            self.two.weight = self.one.weight

    model = TorchModel(Tied, torch.nn.MSELoss())
    layout, flat = initial_values(load_job(EXAMPLES / "torch_digits.yaml"), model)
    assert [box.names for box in layout.boxes] == [("one.weight", "two.weight"), ("one.bias",), ("two.bias",)]
    write_model(tmp_path / "model.safetensors", layout, [(SegmentSpan(0, 0, layout.size), flat)], {})
    held = {name: torch.from_numpy(values) for name, values in load_file(tmp_path / "model.safetensors").items()}
    Tied().load_state_dict(held)


@pytest.mark.torch
def test_numbers_to_find_have_no_right_answers(torch: Any) -> None:
    model = TorchModel(lambda: torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(50, 2)), torch.nn.MSELoss())
    layout, flat, _ = on_vector(model)
    pairs = Batch(batch(8).inputs, np.ones((8, 2), np.float32))
    expected = ((pairs.inputs @ layout.views(flat)["1.weight"].T + layout.views(flat)["1.bias"] - 1) ** 2).mean()
    total, hits = model.evaluate(layout.views(flat), pairs)
    assert total == pytest.approx(8 * expected, rel=1e-5)
    assert hits is None


@pytest.mark.torch
def test_unshareable_modules_are_refused(torch: Any) -> None:
    nn = torch.nn

    def frozen() -> Any:
        made = nn.Linear(2, 2)
        made.bias.requires_grad = False
        return made

    def double() -> Any:
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).double().requires_grad_(False))

    def complex_weight() -> Any:
        made = nn.Linear(2, 2)
        made.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.cfloat))
        return made

    for build, words in (
        (double, r"'1\.weight' is torch\.float64, and shards hold float32: .* call module\.float\(\)"),
        (lambda: nn.Linear(2, 2).bfloat16(), r"parameter 'weight' is torch\.bfloat16, must .*; a script may have it"),
        (complex_weight, r"'weight' is torch\.complex64, .* torch\.view_as_complex"),
        (frozen, r"parameter 'bias' is frozen .*; a script may have it"),
        (nn.ReLU, r"the torch module has no parameters"),
        (nn.Linear(2, 2), r"takes what makes the module, a class or a function"),
        (dict, r"what builds the module gave a dict"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=words):
            TorchModel(build, nn.CrossEntropyLoss())
    many = TorchModel(lambda: nn.Linear(50, 10), nn.CrossEntropyLoss(reduction="none"))
    layout, flat, gradient = on_vector(many)
    with pytest.raises(ModelError, match=r"the loss has shape \(64,\), must be one number"):
        many.loss_and_gradient(layout.views(flat), batch(), layout.views(gradient))


def _held(torch: Any, values: np.ndarray, name: str) -> Any:
    """A tensor as the module has it."""
    return torch.tensor(join(values, np.dtype(np.int64)) if name.endswith("tracked") else values)


@pytest.mark.torch
def test_buffers_of_every_type_are_kept_exactly(torch: Any, tmp_path: Path) -> None:
    """In the module, the vector and the file: a hash's multiplier, a limit, a mask of infinities, a counter."""

    class Kept(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(50, 10)
            self.register_buffer("prime", torch.tensor(2654435761))
            self.register_buffer("limit", torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32))
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
            self.register_buffer("flags", torch.tensor([True, False]))
            self.register_buffer("small", torch.tensor([-128, 127], dtype=torch.int8))
            self.register_buffer("seen", torch.tensor(2**24 - 1))
            self.register_buffer("own", torch.zeros(2, dtype=torch.float64), persistent=False)

        def forward(self, x: Any) -> Any:
            if self.training:
                self.seen += len(x)
            return self.out(x)

    model = TorchModel(Kept, torch.nn.CrossEntropyLoss())
    initial = InitialValues.of(build_job({**NORMED, "strategy": PLAIN}, Path()), model)
    layout, flat = initial.layout, initial.flat()
    gradient = np.empty_like(flat)
    for _ in range(3):
        model.loss_and_gradient(layout.views(flat), batch(), layout.views(gradient))
        flat[layout.starts[2] :] += gradient[layout.starts[2] :]
    file = tmp_path / "model.safetensors"
    write_model(file, layout, [(span, flat[span.start : span.stop]) for span in layout.segments(7)], {})
    wanted = Kept()
    wanted.seen += 3 * 64
    for held in (dbelief.load_model(file, into=Kept()).state_dict(), model._module.state_dict()):
        for name, own in wanted.state_dict().items():
            assert held[name].dtype == own.dtype
            assert name.startswith("out") or torch.equal(held[name], own), name


@pytest.mark.torch
def test_changes_of_buffers_stand_where_others_have_their_gradient(torch: Any) -> None:
    nn = torch.nn
    model = TorchModel(lambda: nn.Sequential(nn.Linear(50, 10), nn.BatchNorm1d(10)), nn.CrossEntropyLoss())
    initial = InitialValues.of(build_job({**NORMED, "strategy": PLAIN}, Path()), model)
    layout, flat = initial.layout, initial.flat()
    assert {box.name: box.dtype for box in layout.boxes if box.kind is Kind.SUMMED} == {
        "1.running_mean": "float32", "1.running_var": "float32", "1.num_batches_tracked": "int64/16"
    }  # fmt: skip
    gradient = np.full_like(flat, np.nan)
    views, out = layout.views(flat), layout.views(gradient)
    plain = nn.Sequential(nn.Linear(50, 10), nn.BatchNorm1d(10))
    plain.load_state_dict({name: _held(torch, values, name) for name, values in views.items()})
    for _ in range(3):
        model.loss_and_gradient(views, batch(), out)
        plain(torch.tensor(batch().inputs))
        for name in model.buffers:
            views[name] += out[name]
            np.testing.assert_allclose(_held(torch, views[name], name), plain.state_dict()[name], rtol=1e-5, atol=1e-6)
    plain.eval()
    with torch.no_grad():
        expected = plain(torch.tensor(batch().inputs)).numpy()
    np.testing.assert_allclose(model.last_layer(views, batch()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize(
    "strategy",
    [
        {**PLAIN, "n_push": 2},
        {**PLAIN, "clip_norm": 1.0},
        {"name": "async-easgd", "rate": 0.1},
        {"name": "sync-sgd", "rule": {"name": "sgd", "rate": 0.1}},
        {"name": "sandblaster"},
    ],
)
def test_buffers_travel_with_single_gradients_only(torch: Any, strategy: dict[str, Any]) -> None:
    nn = torch.nn
    model = TorchModel(lambda: nn.Sequential(nn.Linear(50, 10), nn.BatchNorm1d(10)), nn.CrossEntropyLoss())
    with pytest.raises(
        ModelError, match=r"keeps '1\.running_mean' beside its parameters \(3 buffers\), .* a script may"
    ):
        InitialValues.of(build_job({**NORMED, "strategy": strategy}, Path()), model)


@pytest.mark.torch
@pytest.mark.processes
def test_batch_norm_learns_on_two_replicas(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "from dbelief.nn.torch_model import TorchModel\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))\n"
        "def model():\n"
        "    return TorchModel(net, nn.CrossEntropyLoss())\n"
    )
    strategy = {"name": "downpour", "batch": 16, "rule": {"name": "adagrad", "rate": 0.03}}
    job = {**NORMED, "strategy": strategy, "replicas": 2, "output": str(tmp_path / "runs")}
    job["model"] = {"python": f"{tmp_path / 'normed.py'}:model"}
    run = train(job)
    assert run.summary.test_accuracy is not None
    assert run.summary.test_accuracy >= 0.85
    held = run.load_model()
    assert join(held.views["1.num_batches_tracked"], np.dtype(np.int64)) == run.summary.pushes


@pytest.mark.torch
@pytest.mark.processes
def test_the_example_learns_on_two_replicas(torch: Any, tmp_path: Path) -> None:
    summary = train(EXAMPLES / "torch_digits.yaml", output=str(tmp_path), limits__epochs=3).summary
    assert summary.samples == 3 * 1_257
    assert summary.replicas == 2
    assert summary.test_accuracy is not None
    assert summary.test_accuracy >= 0.8


@pytest.mark.torch
def test_a_module_is_filled_by_a_model_file(torch: Any, net: Callable[[], Any], tmp_path: Path) -> None:
    """Tied weights too; a module of another kind is refused."""

    class Tied(torch.nn.Module):  # type: ignore[misc]  # torch is no import here
        def __init__(self, width: int = 6) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, width)
            self.out = torch.nn.Linear(width, 9, bias=False)
            self.out.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            return self.out(self.table(x).mean(1))

    model = TorchModel(Tied, torch.nn.CrossEntropyLoss())
    values = model.parameters(np.random.default_rng(0))
    layout = Layout.of(values, model.also)
    flat = layout.flatten(dict(values), np.empty(layout.size, np.float32))
    file = tmp_path / "model.safetensors"
    write_model(file, layout, [(SegmentSpan(0, 0, layout.size), flat)], {})
    module = Tied()
    assert dbelief.load_model(file, into=module) is module
    np.testing.assert_array_equal(module.table.weight.detach().numpy(), values["table.weight"])
    assert module.out.weight is module.table.weight
    with pytest.raises(ModelError, match=r"model\.safetensors: holds another model: .*size mismatch for table\.weight"):
        dbelief.load_model(file, into=Tied(7))
    with pytest.raises(ModelError, match=r"holds another model: .*Missing key"):
        dbelief.load_model(file, into=net())
    with pytest.raises(ModelError, match="into: must be a torch module, not a dict"):
        dbelief.load_model(file, into={})
    file.write_bytes(b"junk")
    with pytest.raises(DataError, match="is no safetensors file, or a damaged one"):
        dbelief.load_model(file, into=Tied())
