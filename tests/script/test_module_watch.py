"""What a script changes of its module after Sync: taken over, or refused with the name and the way out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.errors import ModelError, UserError
from tests.jobs import SGD, small_job

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402  (after the check for torch)

from dbelief.torch import sync  # noqa: E402
from dbelief.torch.module_state import ModuleState  # noqa: E402
from dbelief.torch.module_watch import ModuleWatch  # noqa: E402


class Module(nn.Module):
    """Trained and frozen parameters, a counter, a constant, and flags."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("seen", torch.tensor(2**40))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("own", torch.zeros(2), persistent=False)


def watched() -> tuple[Any, Any, ModuleState, ModuleWatch]:
    module = Module()
    optimizer = torch.optim.SGD([own for own in module.parameters() if own.requires_grad], lr=0.1)
    state = ModuleState(module, sums_buffers=True)
    state.bind(state.initial().flat()[: state.pushed.size])
    state.load()
    watch = ModuleWatch(module, optimizer, state)
    watch.check()
    return module, optimizer, state, watch


def assigned(module: Any, optimizer: Any) -> None:
    module.load_state_dict({name: own.clone() for name, own in module.state_dict().items()}, assign=True)


def replaced(module: Any, optimizer: Any) -> None:
    module.last = nn.Linear(3, 2)


def reparametrized(module: Any, optimizer: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(module.last)


def added(module: Any, optimizer: Any) -> None:
    module.more = nn.Linear(3, 2)


def registered(module: Any, optimizer: Any) -> None:
    module.first.scale = nn.Parameter(torch.ones(3))


def removed(module: Any, optimizer: Any) -> None:
    del module.last


def unfrozen(module: Any, optimizer: Any) -> None:
    module.frozen.requires_grad_(True)


def averaged(module: Any, optimizer: Any) -> None:
    with torch.no_grad():
        module.frozen.weight.lerp_(module.first.weight, 0.5)


def flagged(module: Any, optimizer: Any) -> None:
    module.flags = torch.tensor([True, True])


def grouped(module: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": module.frozen.parameters()})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (assigned, r"parameter 'first\.weight' was replaced after Sync \(a new layer, or load_state_dict with assign"),
        (replaced, r"parameter 'last\.weight' was replaced after Sync"),
        (reparametrized, r"parameter 'last\.parametrizations\.weight\.original0' was added after Sync"),
        (added, r"parameter 'more\.weight' was added after Sync, and would not be trained"),
        (registered, r"parameter 'first\.scale' was added after Sync"),
        (removed, r"parameter 'last\.bias' was removed after Sync"),
        (unfrozen, r"parameter 'frozen\.weight' was frozen at Sync, and is not now"),
        (averaged, r"'frozen\.weight' has changed since Sync, and is kept as it was \(requires_grad is False\)"),
        (flagged, r"'flags' has changed since Sync, and is kept as it was \(a buffer of torch\.bool\)"),
        (grouped, r"the optimiser got other parameters, or groups, after Sync"),
    ],
)
def test_what_would_be_lost_is_refused(change: Callable[[Any, Any], None], words: str) -> None:
    module, optimizer, _, watch = watched()
    change(module, optimizer)
    with pytest.raises(ModelError, match=words):
        watch.check()


def test_what_is_harmless_goes_on() -> None:
    """A layer without parameters, frozen parameters, the same values again, a new buffer of the script's own."""
    module, optimizer, state, watch = watched()
    module.act = nn.GELU()
    module.last.requires_grad_(False)
    module.flags.copy_(module.flags.clone())
    module.own = torch.ones(2)
    optimizer.param_groups[0]["lr"] = 0.01
    watch.check()
    module.flags = module.flags.clone()
    module.register_buffer("later", torch.ones(2), persistent=False)
    watch.check()
    state.load()


def test_a_buffer_in_the_place_of_another_one_is_taken_over() -> None:
    """As `self.seen = self.seen + 1` makes one in each pass."""
    module, _, state, watch = watched()
    module.seen = module.seen + 3
    watch.check()
    before = state._values["seen"].copy()
    state.store()
    assert np.array_equal(state._values["seen"] - before, [3, 0, 0, 0])
    module.seen = module.seen.float()
    with pytest.raises(ModelError, match="buffer 'seen' was removed, or got another type, shape or device, after Sync"):
        watch.check()


def test_weights_tied_by_their_memory_are_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight.data = module[0].weight.data
    with pytest.raises(ModelError, match=r"'0\.weight' and '1\.weight' are two tensors in one memory \(tied by \.data"):
        ModuleState(module, sums_buffers=True)
    module[1].weight = module[0].weight
    state = ModuleState(module, sums_buffers=True)
    assert [box.names for box in state.layout.boxes] == [("0.weight", "1.weight"), ("0.bias",), ("1.bias",)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.LazyLinear(3), r"'weight' has no shape yet \(a lazy module\): call the module on a batch"),
        (lambda: nn.Linear(2, 2, device="meta"), r"'weight' has no values \(device meta\)"),
        (lambda: nn.Linear(2, 2).double(), r"'weight' is torch\.float64, .* module\.float\(\) before the optimiser"),
    ],
)
def test_modules_that_shards_cannot_hold(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ModuleState(make(), sums_buffers=True)


def test_an_optimiser_of_closures_is_refused() -> None:
    """Where the shards make the steps."""
    member: Any = SimpleNamespace(job=small_job(strategy={**SGD, "batch": 10}))
    with pytest.raises(ModelError, match=r"LBFGS makes its steps from a closure .* the script makes its own steps"):
        sync._check_optimizer(torch.optim.LBFGS(nn.Linear(2, 2).parameters()), member)
    with pytest.raises(ModelError, match=r"Sync needs the optimiser whose steps the job's rule makes, sgd at"):
        sync._check_optimizer(None, member)


def test_numbers_of_samples_are_whole() -> None:
    assert sync._whole(torch.tensor(16)) == sync._whole(np.int64(16)) == 16
    with pytest.raises(UserError, match=r"samples is 16\.0, must be a whole number"):
        sync._whole(16.0)


def test_whole_numbers_are_exact() -> None:
    """A multiplier and a limit beyond float32, a table that is not pushed, and a counter that crosses 2^24."""
    module = nn.Linear(2, 2)
    tensors = {
        "prime": torch.tensor(2654435761),
        "limit": torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),
        "table": torch.arange(2**40, 2**40 + 70_000),
        "flags": torch.tensor([True, False]),
        "seen": torch.tensor(2**24 - 1),
    }
    for name, own in tensors.items():
        module.register_buffer(name, own.clone())
    state = ModuleState(module, sums_buffers=True)
    assert [name for name, _ in state.fixed()] == ["table", "flags"]
    flat = state.initial().flat()
    values = flat[: state.pushed.size].copy()
    state.bind(values)
    for _ in range(3):
        module.seen += 5
        state.store()
    for name in tensors:
        getattr(module, name).zero_()
    state.load()
    state.load_fixed(np.concatenate([values, flat[state.pushed.size :]]))
    tensors["seen"] += 15
    for name, own in tensors.items():
        assert torch.equal(getattr(module, name), own), name
