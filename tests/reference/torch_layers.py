"""Write what torch makes of images, with its gradients, for the tests of dbelief.nn's layers and losses.

Run by hand, in an environment that has torch (2.13.0 wrote the committed file) and numpy:

    python tests/reference/torch_layers.py

It writes tests/golden/torch_layers.npz, all float64: for each case of CASES

about.<case>                           kind and options (JSON text), in dbelief's words
x.<case>, p0.<case>, p1.<case>         inputs and parameters, in dbelief's layout: images (m, height, width, channels),
                                       filters (height, width, channels, maps), dense weights (inputs, units),
                                       untied filters in tiles (rows, columns, neurons, g, g, q)
y.<case>, dy.<case>                    outputs, and a random dL/dy
dx.<case>, d0.<case>, d1.<case>        dL/dx and dL/dparameters by autograd; no dx of whole numbers

and for each loss x, targets, total (the sum of the losses) and dx (the gradient of the mean).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

GOLDEN = Path(__file__).parent.parent / "golden"
IMAGES = (2, 11, 10, 3)
OF_TILES = (2, 8, 6, 3)  # for strides that must divide them


def channels_first(x: Any) -> Any:
    return x.permute(0, 3, 1, 2)


def channels_last(x: Any) -> Any:
    return x.permute(0, 2, 3, 1)


def conv(x: Any, weight: Any, bias: Any, kernel: int, maps: int, stride: int = 1, padding: int = 0) -> Any:
    return channels_last(F.conv2d(channels_first(x), weight.permute(3, 2, 0, 1), bias, stride, padding))


def dense(x: Any, weight: Any, bias: Any, units: int) -> Any:
    return F.linear(x.flatten(1), weight.T, bias)


def local(x: Any, weight: Any, bias: Any, window: int, block: int, maps: int, stride: int | None = None) -> Any:
    """Windows as columns, each multiplied by filters of its own, and blocks as columns joined to images."""
    (down, across, neurons, g), s = weight.shape[:4], stride or block
    columns = F.unfold(channels_first(x), window, stride=s)  # (m, channels window window, places)
    in_pixels = weight.reshape(down, across, neurons, g, g, s, s, -1).permute(0, 1, 2, 7, 3, 5, 4, 6)
    y = torch.matmul(in_pixels.reshape(down * across, neurons, -1), columns.permute(2, 1, 0))
    y = (y + bias.reshape(-1, neurons, 1)).reshape(down * across, block * block, maps, len(x))
    joined = F.fold(y.permute(3, 2, 1, 0).flatten(1, 2), (down * block, across * block), block, stride=block)
    return channels_last(joined)


def max_pool(x: Any, size: int, stride: int | None = None, padding: int = 0, ceil_mode: bool = False) -> Any:
    return channels_last(F.max_pool2d(channels_first(x), size, stride, padding, ceil_mode=ceil_mode))


def average_pool(x: Any, size: int, stride: int | None = None) -> Any:
    return channels_last(F.avg_pool2d(channels_first(x), size, stride))


def l2_pool(x: Any, size: int, stride: int = 1, eps: float = 1e-8) -> Any:
    sums = F.avg_pool2d(channels_first(x**2), size, stride, divisor_override=1)
    return channels_last(torch.sqrt(eps + sums))


def lcn(x: Any, size: int = 5, sigma: float = 1.25, c0: float = 0.01) -> Any:
    """Both sums as one convolution whose kernel is the whole window over all maps."""
    h, b = channels_first(x), size // 2
    v = torch.arange(-b, b + 1, dtype=torch.float64)
    window = torch.exp(-(v[:, None] ** 2 + v**2) / (2 * sigma**2)).expand(1, h.shape[1], size, size)
    window = window / window.sum()
    g = h[:, :, b:-b, b:-b] - F.conv2d(h, window)
    return channels_last(g[:, :, b:-b, b:-b] / torch.sqrt(F.conv2d(g**2, window)).clamp(min=c0))


# case: (kind in dbelief's words, options, how torch computes it, shapes of parameters)
CASES: dict[str, tuple[str, dict[str, Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "dense": ("dense", {"units": 5}, dense, ((11 * 10 * 3, 5), (5,))),
    "relu": ("relu", {}, F.relu, ()),
    "sigmoid": ("sigmoid", {}, torch.sigmoid, ()),
    "tanh": ("tanh", {}, torch.tanh, ()),
    "conv": ("conv", {"maps": 6, "kernel": 5}, conv, ((5, 5, 3, 6), (6,))),
    "conv_stride": ("conv", {"maps": 6, "kernel": 4, "stride": 3}, conv, ((4, 4, 3, 6), (6,))),
    "max_pool": ("max_pool", {"size": 3}, max_pool, ()),
    "max_pool_stride": ("max_pool", {"size": 3, "stride": 2}, max_pool, ()),
    "average_pool": ("average_pool", {"size": 3}, average_pool, ()),
    "average_pool_stride": ("average_pool", {"size": 3, "stride": 1}, average_pool, ()),
    "l2_pool": ("l2_pool", {"size": 5}, l2_pool, ()),
    "l2_pool_stride": ("l2_pool", {"size": 3, "stride": 2, "eps": 0.01}, l2_pool, ()),
    "lcn": ("lcn", {}, lcn, ()),
    "lcn_c0": ("lcn", {"size": 3, "sigma": 2.0, "c0": 1.0}, lcn, ()),
    "local": ("local", {"window": 4, "block": 2, "maps": 2}, local, ((3, 2, 8, 2, 2, 12), (3, 2, 8))),
    "local_stride": (
        "local",
        {"window": 4, "block": 3, "maps": 1, "stride": 2},
        local,
        ((3, 2, 9, 2, 2, 12), (3, 2, 9)),
    ),
    "local_plain": (
        "local",
        {"window": 3, "block": 1, "maps": 2, "stride": 1},
        local,
        ((6, 4, 2, 3, 3, 3), (6, 4, 2)),
    ),
    "conv_padding": ("conv", {"maps": 6, "kernel": 5, "padding": 2}, conv, ((5, 5, 3, 6), (6,))),
    "conv_stride_padding": ("conv", {"maps": 2, "kernel": 4, "stride": 3, "padding": 1}, conv, ((4, 4, 3, 2), (2,))),
    "max_pool_padding": ("max_pool", {"size": 3, "stride": 1, "padding": 1}, max_pool, ()),
    "max_pool_ceil": ("max_pool", {"size": 3, "stride": 2, "ceil_mode": True}, max_pool, ()),
    "max_pool_both": ("max_pool", {"size": 4, "stride": 3, "padding": 2, "ceil_mode": True}, max_pool, ()),
    "max_pool_within": ("max_pool", {"size": 1, "stride": 4, "ceil_mode": True}, max_pool, ()),
}


def one_vs_all(outputs: Any, targets: Any) -> Any:
    hot = F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return F.binary_cross_entropy_with_logits(outputs, hot, reduction="sum")


def softmax_cross_entropy(outputs: Any, targets: Any) -> Any:
    return F.cross_entropy(outputs, targets, reduction="sum")


def layer(kind: str, options: dict[str, Any], run: Callable[..., Any], shapes: Any, seed: int) -> dict[str, np.ndarray]:
    """Everything of one layer, by name."""
    rng = np.random.default_rng(seed)
    images = OF_TILES if kind == "local" else IMAGES
    leaves = [torch.tensor(rng.standard_normal(shape), requires_grad=True) for shape in (images, *shapes)]
    y = run(*leaves, **options)
    dy = torch.tensor(rng.standard_normal(y.shape))
    gradients = torch.autograd.grad(y, leaves, dy)
    about = json.dumps({"kind": kind, "options": options, "torch": torch.__version__})
    found = {"about": np.array(about), "y": y.detach().numpy(), "dy": dy.numpy()}
    for name, values in zip(("x", "p0", "p1"), leaves, strict=False):
        found[name] = values.detach().numpy()
    for name, values in zip(("dx", "d0", "d1"), gradients, strict=False):
        found[name] = values.numpy()
    return found


def embedding() -> dict[str, np.ndarray]:
    """Everything of the layer that takes whole numbers, by name."""
    rng = np.random.default_rng(98)
    options = {"entries": 9, "width": 4}
    x, table = torch.tensor(rng.integers(0, 9, (6, 5))), torch.tensor(rng.standard_normal((9, 4)), requires_grad=True)
    y = F.embedding(x, table).flatten(1)
    dy = torch.tensor(rng.standard_normal(y.shape))
    (d0,) = torch.autograd.grad(y, [table], dy)
    about = json.dumps({"kind": "embedding", "options": options, "torch": torch.__version__})
    found = {"x": x, "p0": table.detach(), "y": y.detach(), "dy": dy, "d0": d0}
    return {"about": np.array(about), **{name: values.numpy() for name, values in found.items()}}


def loss(run: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Everything of one loss, by name."""
    rng = np.random.default_rng(99)
    x = torch.tensor(4 * rng.standard_normal((9, 7)), requires_grad=True)
    targets = torch.tensor(rng.integers(0, 7, 9))
    total = run(x, targets)
    (dx,) = torch.autograd.grad(total / 9, [x])
    return {"x": x.detach().numpy(), "targets": targets.numpy(), "total": total.detach().numpy(), "dx": dx.numpy()}


def everything() -> dict[str, np.ndarray]:
    """What the file holds."""
    found: dict[str, np.ndarray] = {}
    for seed, (case, parts) in enumerate(CASES.items()):
        found |= {f"{name}.{case}": values for name, values in layer(*parts, seed).items()}
    found |= {f"{name}.embedding": values for name, values in embedding().items()}
    for run in (softmax_cross_entropy, one_vs_all):
        found |= {f"{name}.{run.__name__}": values for name, values in loss(run).items()}
    return found


if __name__ == "__main__":
    arrays: dict[str, Any] = everything()
    np.savez_compressed(GOLDEN / "torch_layers.npz", **arrays)
