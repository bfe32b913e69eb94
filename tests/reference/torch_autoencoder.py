"""Write what torch's autograd makes of Eq. 1 of Coates et al. 2013, for the tests of dbelief.nn.autoencoders.

Run by hand, in an environment that has torch (2.13.0 wrote the committed file) and numpy:

    python tests/reference/torch_autoencoder.py

It writes tests/golden/torch_autoencoder.npz, all float64, of every case:

CASE.images   (m, height, width, channels)
CASE.eq1      JSON text: window, block, maps, pool, sparsity, eps
CASE.weight   (nr, nc, F, fy, fx, channels): W~ of the F = block block maps neurons of each block, in the order
              (dy, dx, map), each over the fy x fx pixels of its receptive field
CASE.alpha, CASE.loss, CASE.d_weight, CASE.d_alpha: J is the mean over the samples

and tests/golden/torch_stacks.npz, of every case of STACKS, whose joint loss is the sum of its stacks' J:

CASE.images   as above
CASE.stacks   JSON text: of each stack the options of Eq. 1, and contrast: size, sigma, c0
CASE.joint    the joint loss
CASE.1.weight, CASE.1.alpha, CASE.1.loss, CASE.1.d_weight, CASE.1.d_alpha, CASE.2. ...
              of each stack; loss is its own J, gradients are those of the joint loss
CASE.2.greedy_weight, CASE.2.greedy_alpha, ...
              gradients of its own J alone

Nothing here is in tiles: W is one dense matrix over pixels, and what autograd gives off the receptive fields is left
out. Pooling is torch's average pooling, times the size of its window.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

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
    sums = functional.avg_pool2d(in_maps**2, pool, stride=1) * pool**2
    return ((error**2).sum() + eq1["sparsity"] * torch.sqrt(eq1["eps"] + sums).sum()) / m


# case: (m, height, width, channels), options of each stack
STACKS = {
    "two": (
        (3, 16, 14, 1),
        [
            {"window": 4, "block": 2, "maps": 2, "pool": 3, "sparsity": 0.3, "eps": 1e-3,
             "contrast": {"size": 3, "sigma": 1.0, "c0": 0.01}},
            {"window": 4, "block": 2, "maps": 3, "pool": 3, "sparsity": 0.5, "eps": 1e-2,
             "contrast": {"size": 5, "sigma": 1.25, "c0": 0.01}},
        ],
    ),
    "three": (
        (2, 20, 20, 1),
        [
            {"window": 2, "block": 2, "maps": 2, "pool": 3, "sparsity": 0.1, "eps": 1e-2,
             "contrast": {"size": 3, "sigma": 1.25, "c0": 0.01}},
            {"window": 4, "block": 2, "maps": 2, "pool": 2, "sparsity": 0.7, "eps": 1e-3,
             "contrast": {"size": 1, "sigma": 1.0, "c0": 2.0}},
            {"window": 3, "block": 1, "maps": 2, "pool": 1, "sparsity": 0.2, "eps": 1e-3,
             "contrast": {"size": 1, "sigma": 1.0, "c0": 0.01}},
        ],
    ),
}  # fmt: skip


def above(w: torch.Tensor, alpha: torch.Tensor, images: torch.Tensor, stack: dict[str, Any]) -> torch.Tensor:
    """What the next stack sees: pooled and normalised, (m, rows, columns, maps); windows are whole convolutions."""
    m, height, width, _ = images.shape
    nr, nc, b, maps, pool = w.shape[0], w.shape[1], stack["block"], stack["maps"], stack["pool"]
    unit = w / w.flatten(3).norm(dim=-1)[..., None, None, None]
    z = alpha * images.reshape(m, -1) @ dense(unit, height, width, b).T
    in_maps = z.reshape(m, nr, nc, b, b, maps).permute(0, 5, 1, 3, 2, 4).reshape(m, maps, nr * b, nc * b)
    pooled = torch.sqrt(stack["eps"] + functional.avg_pool2d(in_maps**2, pool, stride=1) * pool**2)
    size, sigma, c0 = (stack["contrast"][name] for name in ("size", "sigma", "c0"))
    reach = size // 2
    v = torch.arange(-reach, reach + 1, dtype=torch.float64)
    window = torch.exp(-(v[:, None] ** 2 + v**2) / (2 * sigma**2)).expand(1, maps, size, size)
    window = window / window.sum()

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, reach : x.shape[2] - reach, reach : x.shape[3] - reach]

    g = inner(pooled) - functional.conv2d(pooled, window)
    contrast = torch.sqrt(functional.conv2d(g**2, window)).clamp(min=c0)
    return (inner(g) / contrast).permute(0, 2, 3, 1)


def stacked(shape: tuple[int, ...], stacks: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Everything of one case of STACKS, by name."""
    images = rng.standard_normal(shape)
    found = {"images": images, "stacks": np.array(json.dumps(stacks))}
    x, losses, tensors = torch.tensor(images), [], []
    for place, stack in enumerate(stacks, start=1):
        (_, height, width, channels), window, b = x.shape, stack["window"], stack["block"]
        blocks = ((height - window) // b + 1, (width - window) // b + 1, b * b * stack["maps"])
        w = rng.standard_normal((*blocks, window, window, channels))
        alpha = torch.tensor(0.4 + 0.2 * place, dtype=torch.float64, requires_grad=True)
        own = (torch.tensor(w, requires_grad=True), alpha)
        tensors.append(own)
        losses.append(objective(*own, x, {name: value for name, value in stack.items() if name != "contrast"}))
        found |= {f"{place}.weight": w, f"{place}.alpha": alpha.detach().numpy()}
        found[f"{place}.loss"] = losses[-1].detach().numpy()
        greedy = torch.autograd.grad(losses[-1], own, retain_graph=True)
        found |= {f"{place}.greedy_{name}": d.numpy() for name, d in zip(("weight", "alpha"), greedy, strict=True)}
        x = above(*own, x, stack) if place < len(stacks) else x
    joint = torch.stack(losses).sum()
    every = [tensor for own in tensors for tensor in own]
    for i, d in enumerate(torch.autograd.grad(joint, every)):
        found[f"{i // 2 + 1}.{('d_weight', 'd_alpha')[i % 2]}"] = d.numpy()
    return {**found, "joint": joint.detach().numpy()}


def main() -> None:
    """Write the files."""
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
    rng, written = np.random.default_rng(13), {}
    for case, (shape, stacks) in STACKS.items():
        written.update({f"{case}.{name}": values for name, values in stacked(shape, stacks, rng).items()})
    np.savez_compressed(GOLDEN / "torch_stacks.npz", **written)


if __name__ == "__main__":
    main()
