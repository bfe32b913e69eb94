"""Write what torch.optim.LBFGS does on a quadratic without a line search, for the tests of the vector-free L-BFGS.

Run by hand, in an environment that has torch (2.13.0 wrote the committed file) and numpy:

    python tests/reference/torch_lbfgs.py

It writes tests/golden/torch_lbfgs.npz: matrix (20, 20), b and w0 (20,) of the loss w.A.w / 2 - b.w; rate, history, and
trajectory (12, 20): w after each step, all float64. torch's first step is min(1, 1 / |g|_1) times the rate.
"""

from pathlib import Path

import numpy as np
import torch

SIZE, STEPS, HISTORY, RATE = 20, 12, 5, 0.8


def main() -> None:
    """Write the file."""
    rng = np.random.default_rng(11)
    basis, _ = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))
    matrix = basis * np.geomspace(1, 50, SIZE) @ basis.T
    b, w0 = rng.standard_normal(SIZE), rng.standard_normal(SIZE)
    w = torch.nn.Parameter(torch.from_numpy(w0.copy()))
    optimizer = torch.optim.LBFGS([w], lr=RATE, max_iter=1, history_size=HISTORY, tolerance_grad=0, tolerance_change=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = w @ torch.from_numpy(matrix) @ w / 2 - torch.from_numpy(b) @ w
        loss.backward()
        return loss

    steps = []
    for _ in range(STEPS):
        optimizer.step(closure)
        steps.append(w.detach().numpy().copy())
    np.savez(
        Path(__file__).parent.parent / "golden" / "torch_lbfgs.npz",
        matrix=matrix,
        b=b,
        w0=w0,
        rate=RATE,
        history=HISTORY,
        trajectory=np.stack(steps),
    )


if __name__ == "__main__":
    main()
