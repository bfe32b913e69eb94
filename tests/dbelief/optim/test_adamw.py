from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim.adam import Adam, AdamW

Run = Callable[..., np.ndarray]


@pytest.mark.parametrize("fused", [True, False])
def test_without_decay_it_is_adam(run: Run, fused: bool) -> None:
    rng = np.random.default_rng(0)
    w0, gradients = rng.standard_normal(40, dtype=np.float32), rng.standard_normal((9, 40), dtype=np.float32)
    plain = run(Adam(), w0, gradients, 0.1, fused=fused)
    np.testing.assert_array_equal(run(AdamW(weight_decay=0.0), w0, gradients, 0.1, fused=fused), plain)


@pytest.mark.parametrize("fused", [True, False])
def test_without_gradients_only_the_decay_acts(run: Run, fused: bool) -> None:
    w0, gradients = np.array([8.0, -4.0], np.float32), np.zeros((3, 2), np.float32)
    walked = run(AdamW(weight_decay=0.5), w0, gradients, 1.0, fused=fused)
    np.testing.assert_array_equal(walked, [[4.0, -2.0], [2.0, -1.0], [1.0, -0.5]])


def test_the_moments_never_see_the_decay(run: Run) -> None:
    """The difference from a penalty in the gradient: the moments are Adam's own, whatever decays."""
    rng = np.random.default_rng(0)
    w0, gradients = rng.standard_normal(20), rng.standard_normal((12, 20))
    plain, decayed = (np.zeros(20), np.zeros(20)), (np.zeros(20), np.zeros(20))
    run(Adam(), w0, gradients, 0.1, plain, fused=False)
    run(AdamW(weight_decay=0.3), w0, gradients, 0.1, decayed, fused=False)
    np.testing.assert_array_equal(decayed, plain)


@pytest.mark.parametrize("options", [{"beta1": 1.0}, {"weight_decay": -0.1}, {"weight_decay": float("inf")}])
def test_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"adamw: {next(iter(options))} is "):
        AdamW(**options)
