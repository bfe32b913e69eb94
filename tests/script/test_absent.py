"""Which parameters of a script's module took part in a step: those for which torch would have a gradient."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import numpy as np
import pytest

from dbelief.core.absent import EVERYTHING, Ranges

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

import torch  # noqa: E402

from dbelief.torch.module_state import ModuleState  # noqa: E402


class Net(torch.nn.Module):
    """Three parameters of 3 numbers, and one of 2 in half precision, which is no view of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.full((3,), float(i + 1))) for i in range(3))
        self.short = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def state(net: Net) -> ModuleState:
    made = ModuleState(net, sums_buffers=True)
    made.bind(np.ones(11, np.float32), (np.zeros(11, np.float32), np.zeros(11, np.float32)))
    return made


def zeroed(net: Net) -> None:
    net.a.sum().backward()
    net.zero_grad(set_to_none=False)


def written(net: Net) -> None:
    assert net.b.grad is not None
    net.b.grad.add_(1.0)


@pytest.mark.parametrize(("steps", "absent"), [
    (lambda net: None, EVERYTHING),
    (lambda net: (net.a.sum() + net.c.sum()).backward(), (3, 6, 9, 11)),
    (lambda net: net.short.sum().backward(), (0, 9)),
    (lambda net: (net.a.sum() + 0 * net.b.sum()).backward(), (6, 11)),
    (lambda net: [net.a.sum().backward(), net.b.sum().backward()], (6, 11)),
    (lambda net: [net.zero_grad(), net.b.sum().backward()], (0, 3, 6, 11)),
    (lambda net: [net.b.sum().backward(), net.zero_grad()], EVERYTHING),
    (zeroed, (3, 11)),
    (written, (0, 3, 6, 11)),
    (lambda net: setattr(net.c, "grad", torch.ones(3)), (0, 6, 9, 11)),
], ids=["nothing", "two", "half", "a gradient of 0", "two passes", "None before", "None after", "set to 0", "written",
        "set"])  # fmt: skip
def test_what_torch_has_no_gradient_for_took_no_part(
    net: Net, state: ModuleState, steps: Callable[[Net], object], absent: Ranges
) -> None:
    for _ in range(3):  # each step anew, in the vector of the step before the last
        steps(net)
        gradients, found = state.collect_gradients()
        assert found == absent
        inside = np.zeros(11, bool)
        for start, stop in zip(absent[::2], absent[1::2], strict=True):
            inside[start:stop] = True
        assert not gradients[inside].any()
        state.next_gradients()


def test_a_step_after_one_that_was_left_out(net: Net, state: ModuleState) -> None:
    net.a.sum().backward()
    state.drop_gradients()
    net.b.sum().backward()
    gradients, absent = state.collect_gradients()
    np.testing.assert_array_equal(gradients, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0])
    assert absent == (0, 3, 6, 11)


def test_a_module_can_be_copied_and_saved(net: Net, state: ModuleState) -> None:
    """As those that average weights do; a copy's passes are no part of the module's step."""
    other = copy.deepcopy(net)
    other.c.sum().backward()
    torch.save(net, io.BytesIO())
    net.a.sum().backward()
    assert state.collect_gradients()[1] == (3, 11)
