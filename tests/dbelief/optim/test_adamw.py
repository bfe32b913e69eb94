import numpy as np
import pytest

from dbelief.optim.rules.adam import Adam, AdamW
from tests.dbelief.optim.conftest import Run


@pytest.mark.parametrize("fused", [True, False])
def test_without_decay_it_is_adam(run: Run, fused: bool) -> None:
    rng = np.random.default_rng(0)
    w0, gradients = rng.standard_normal(40, dtype=np.float32), rng.standard_normal((9, 40), dtype=np.float32)
    plain = run(Adam(), w0, gradients, 0.1, fused=fused)
    np.testing.assert_array_equal(run(AdamW(weight_decay=0.0), w0, gradients, 0.1, fused=fused), plain)
