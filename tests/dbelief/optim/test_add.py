"""The rule of differences: bits of NumPy's sum, whatever the rate."""

from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim import make_rule
from dbelief.optim.apply import FEW, apply_rule
from dbelief.optim.rules.add import ADD, Add

Run = Callable[..., np.ndarray]
both_forms = pytest.mark.parametrize("fused", [True, False])


@both_forms
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0, np.nan])
def test_the_rate_and_the_step_have_no_meaning(run: Run, rate: float, fused: bool) -> None:
    rng = np.random.default_rng(0)
    w, differences = rng.standard_normal(67, dtype=np.float32), rng.standard_normal((5, 67), dtype=np.float32)
    found = run(ADD, w, differences, rate, fused=fused)
    for after, difference in zip(found, differences, strict=True):
        w = w + difference
        assert after.tobytes() == w.tobytes()


def test_it_has_no_state_and_no_options() -> None:
    rule = make_rule("add", {})
    assert rule == ADD
    assert isinstance(rule, Add)
    assert (rule.name, dict(rule.state)) == ("add", {})
    with pytest.raises(ValueError, match="rule add has no option 'rate'; there is: none"):
        make_rule("add", {"rate": 1.0})


def test_numbers_at_any_address_are_added() -> None:
    """As they are inside a received message: read-only, and not aligned."""
    view = np.frombuffer(b"xyz" + np.arange(33, dtype=np.float32).tobytes(), np.float32, offset=3)
    w = np.ones(33, np.float32)
    make_rule("add", {}).apply(w, view, (), np.float32(0), 1)
    np.testing.assert_array_equal(w, np.arange(33) + 1)


@pytest.mark.parametrize("size", [3, FEW, FEW + 1])
def test_a_copy_of_what_was_before_is_given(size: int) -> None:
    w, before = np.full(size, 5, np.float32), np.zeros(size, np.float32)
    apply_rule(ADD, w, np.full(size, 2, np.float32), (), np.float32(1), 1, before)
    assert (set(before.tolist()), set(w.tolist())) == ({5.0}, {7.0})


def test_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="could not be broadcast"):
        ADD.apply(np.zeros(4, np.float32), np.zeros(3, np.float32), (), np.float32(1), 1)


@both_forms
def test_a_sum_beyond_float32_is_infinite(run: Run, fused: bool) -> None:
    """Without a warning in the shard's log, as with every other rule."""
    w0, difference = np.array([3e38, np.inf], np.float32), np.array([[3e38, -np.inf]], np.float32)
    np.testing.assert_array_equal(run(ADD, w0, difference, 1.0, fused=fused)[0], [np.inf, np.nan])
    with np.errstate(all="raise"):
        run(make_rule("sgd", {}), w0, -difference, 1.0, fused=fused)
