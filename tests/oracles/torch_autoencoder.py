"""Write what torch's autograd makes of Eq. 1 of Coates et al. 2013, for the tests of dbelief.nn.autoencoder.

Run by hand, in an environment that has torch (2.13.0 wrote the committed file) and numpy:

    python tests/oracles/torch_autoencoder.py

It writes tests/golden/torch_autoencoder.npz, all float64, of every case:

CASE.images   (m, height, width, channels)
CASE.eq1      JSON text: window, block, maps, pool, sparsity, eps
CASE.weight   (nr, nc, F, fy, fx, channels): W~ of the F = block block maps neurons of each block, in the order
              (dy, dx, map), each over the fy x fx pixels of its receptive field
CASE.alpha, CASE.loss, CASE.d_weight, CASE.d_alpha: J is the mean over the samples

Nothing here is in tiles: W is one dense matrix over pixels, and what autograd gives off the receptive fields is left
out. Pooling is torch's average pooling, times the size of its window.
"""

import json
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent.parent / "golden"

# case: (m, height, width, channels), options
CASES = {
    "colour": ((3, 10, 12, 2), {"window": 4, "block": 2, "maps": 3, "pool": 5, "sparsity": 0.1, "eps": 1e-3}),
    "grey": ((4, 12, 16, 1), {"window": 8, "block": 4, "maps": 1, "pool": 3, "sparsity": 2.0, "eps": 1e-8}),
    "untied": ((2, 5, 4, 3), {"window": 3, "block": 1, "maps": 2, "pool": 2, "sparsity": 0.5, "eps": 1e-2}),
}


def dense(w: torch.Tensor, height: int, width: int, block: int) -> torch.Tensor:
    """All of W: (nr nc F, height width channels), zeros off the receptive fields."""
    nr, nc, neurons, fy, fx, channels = w.shape
    full = torch.zeros(nr, nc, neurons, height, width, channels, dtype=w.dtype)
    for i in range(nr):
        for j in range(nc):
            y, x = i * block, j * block
            full[i, j, :, y : y + fy, x : x + fx] = w[i, j]
    return full.reshape(nr * nc * neurons, -1)


def objective(w: torch.Tensor, alpha: torch.Tensor, images: torch.Tensor, eq1: dict[str, float]) -> torch.Tensor:
    """Mean of J over the images."""
    m, height, width, _ = images.shape
    nr, nc, b, maps, pool = w.shape[0], w.shape[1], int(eq1["block"]), int(eq1["maps"]), int(eq1["pool"])
    unit = w / w.flatten(3).norm(dim=-1)[..., None, None, None]
    matrix, x = dense(unit, height, width, b), images.reshape(m, -1)
    z = alpha * x @ matrix.T
    error = z @ matrix - x
    in_maps = z.reshape(m, nr, nc, b, b, maps).permute(0, 5, 1, 3, 2, 4).reshape(m, maps, nr * b, nc * b)
    sums = torch.nn.functional.avg_pool2d(in_maps**2, pool, stride=1) * pool**2
    return ((error**2).sum() + eq1["sparsity"] * torch.sqrt(eq1["eps"] + sums).sum()) / m


def main() -> None:
    """Write the file."""
    rng, written = np.random.default_rng(11), {}
    for case, (shape, eq1) in CASES.items():
        _, height, width, channels = shape
        window, b = int(eq1["window"]), int(eq1["block"])
        nr, nc = (height - window) // b + 1, (width - window) // b + 1
        images = rng.standard_normal(shape)
        w = rng.standard_normal((nr, nc, b * b * int(eq1["maps"]), window, window, channels))
        weight, alpha = torch.tensor(w, requires_grad=True), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        loss = objective(weight, alpha, torch.tensor(images), eq1)
        loss.backward()
        assert weight.grad is not None
        assert alpha.grad is not None
        found = {
            "images": images,
            "eq1": np.array(json.dumps(eq1)),
            "weight": w,
            "alpha": np.array(alpha.item()),
            "loss": np.array(loss.item()),
            "d_weight": weight.grad.numpy(),
            "d_alpha": np.array(alpha.grad.item()),
        }
        written.update({f"{case}.{name}": values for name, values in found.items()})
    np.savez_compressed(GOLDEN / "torch_autoencoder.npz", **written)


if __name__ == "__main__":
    main()
