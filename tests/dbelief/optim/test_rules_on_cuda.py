"""The rules' formulas on a CUDA device: needs CuPy."""

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.optim import RULES, make_rule


@pytest.mark.gpu
@pytest.mark.parametrize("name", RULES)
def test_cuda_agrees_with_the_host(cuda: Backend, name: str) -> None:
    rule, rng = make_rule(name, {}), np.random.default_rng(0)
    w0, gradients = (
        rng.standard_normal(999, dtype=np.float32),
        rng.standard_normal((10, 999), dtype=np.float32),
    )
    gradients[:, ::10] = 0
    ends = []
    for backend in (cuda, select_backend("cpu")):
        w = backend.xp.array(w0)
        states = tuple(backend.xp.full_like(w, value) for value in rule.state.values())
        for count, gradient in enumerate(gradients, start=1):
            rule.apply_reference(backend.xp, w, backend.to_device(gradient), states, np.float32(0.05), count)
        assert w.dtype == np.float32
        ends.append(backend.to_host(w))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)
