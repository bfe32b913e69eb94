"""The rule of differences: bits of NumPy's sum, whatever the rate."""

import numpy as np
import pytest

from dbelief.optim import make_rule
from dbelief.optim.rules.add import ADD, Add
from tests.dbelief.optim.conftest import Run

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


@both_forms
def test_a_sum_beyond_float32_is_infinite(run: Run, fused: bool) -> None:
    """Without a warning in the shard's log, as with every other rule."""
    w0, difference = np.array([3e38, np.inf], np.float32), np.array([[3e38, -np.inf]], np.float32)
    np.testing.assert_array_equal(run(ADD, w0, difference, 1.0, fused=fused)[0], [np.inf, np.nan])
    with np.errstate(all="raise"):
        run(make_rule("sgd", {}), w0, -difference, 1.0, fused=fused)
