"""Write what torch.optim does with given gradients, for the tests of dbelief.optim.

Run by hand, in an environment that has torch (2.13.0 wrote the committed files) and numpy:

    python tests/reference/torch_trajectories.py

It writes, into tests/golden:

torch_inputs.npz   w0 (50,) and gradients (30, 50), float32; magnitudes from 1e-3 to 1e3
torch_<case>.npz   rule, options and rate (JSON text); float32 and float64 (30, 50): w after each step, run in
                   that dtype from the same numbers
torch_absent.npz   stops (4,) of four parameters that together have the 50 numbers; took (30, 4): whether each took part
                   in a step: always, a seeded half of the time, in the first step alone, never; by case as above, under
                   CASE/float32 and CASE/float64, w after each step. One that took no part has no gradient (None)

The options are in dbelief's words.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS, SIZE = 30, 50
GOLDEN = Path(__file__).parent.parent / "golden"

# case: (rule, rate, options in dbelief's words, torch's class, options in torch's words)
CASES: dict[str, tuple[str, float, dict[str, float], Any, dict[str, Any]]] = {
    "sgd": ("sgd", 0.05, {}, torch.optim.SGD, {}),
    "momentum": ("momentum", 0.01, {"mu": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": ("nesterov", 0.01, {"mu": 0.9}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd_decay": ("sgd", 0.05, {"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum_decay": (
        "momentum",
        0.01,
        {"mu": 0.9, "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    "nesterov_decay": (
        "nesterov",
        0.01,
        {"mu": 0.9, "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adagrad": ("adagrad", 0.1, {"eps": 0.0, "a0": 0.0}, torch.optim.Adagrad, {"eps": 0.0}),
    "adagrad_eps": (
        "adagrad",
        0.1,
        {"eps": 1e-10, "a0": 0.1},
        torch.optim.Adagrad,
        {"eps": 1e-10, "initial_accumulator_value": 0.1},
    ),
    "adam": (
        "adam",
        0.01,
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        torch.optim.Adam,
        {"betas": (0.9, 0.999), "eps": 1e-8},
    ),
    "adamw": (
        "adamw",
        0.01,
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1},
        torch.optim.AdamW,
        {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1},
    ),
}


def inputs() -> tuple[np.ndarray, np.ndarray]:
    """Draw w0 and gradients; every gradient is nonzero, since torch's Adagrad with eps = 0 gives NaN at 0."""
    rng = np.random.default_rng(20)
    w0 = rng.standard_normal(SIZE, dtype=np.float32)
    scale = np.geomspace(1e-3, 1e3, SIZE).astype(np.float32)
    gradients = rng.standard_normal((STEPS, SIZE), dtype=np.float32) * scale
    assert np.all(gradients != 0)
    return w0, gradients


def trajectory(make: Any, rate: float, options: dict[str, Any], w0: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Give w after each step, in the dtype of w0."""
    w = torch.nn.Parameter(torch.from_numpy(w0.copy()))
    optimizer = make([w], lr=rate, **options)
    steps = []
    for gradient in gradients:
        w.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        steps.append(w.detach().numpy().copy())
    return np.stack(steps)


def pattern() -> tuple[np.ndarray, np.ndarray]:
    """Draw which of four parameters take part in each step, and where they end."""
    took = np.random.default_rng(21).random((STEPS, 4)) < np.array([1.0, 0.5, 0.0, 0.0])
    took[0, 2] = True
    return np.array([11, 30, 41, SIZE]), took


def absent_trajectory(
    make: Any,
    rate: float,
    options: dict[str, Any],
    w0: np.ndarray,
    gradients: np.ndarray,
    stops: np.ndarray,
    took: np.ndarray,
) -> np.ndarray:
    """Give w after each step, where a parameter has no gradient in some steps."""
    parameters = [torch.nn.Parameter(torch.from_numpy(part.copy())) for part in np.split(w0, stops[:-1])]
    optimizer = make(parameters, lr=rate, **options)
    steps = []
    for gradient, here in zip(gradients, took, strict=True):
        for own, part, takes in zip(parameters, np.split(gradient, stops[:-1]), here, strict=True):
            own.grad = torch.from_numpy(part.copy()) if takes else None
        optimizer.step()
        steps.append(np.concatenate([own.detach().numpy() for own in parameters]))
    return np.stack(steps)


def write_absent(w0: np.ndarray, gradients: np.ndarray) -> None:
    """Write the file of the steps in which parameters take no part."""
    stops, took = pattern()
    walked: dict[str, Any] = {
        f"{case}/{kind}": absent_trajectory(
            make, rate, torch_options, w0.astype(kind), gradients.astype(kind), stops, took
        )
        for case, (_, rate, _, make, torch_options) in CASES.items()
        for kind in ("float32", "float64")
    }
    np.savez_compressed(GOLDEN / "torch_absent.npz", stops=stops, took=took, **walked)


def main() -> None:
    """Write all files."""
    w0, gradients = inputs()
    np.savez_compressed(GOLDEN / "torch_inputs.npz", w0=w0, gradients=gradients)
    for case, (rule, rate, options, make, torch_options) in CASES.items():
        narrow, wide = (
            trajectory(make, rate, torch_options, w0.astype(kind), gradients.astype(kind))
            for kind in ("float32", "float64")
        )
        about = json.dumps({"rule": rule, "rate": rate, "options": options, "torch": torch.__version__})
        np.savez_compressed(GOLDEN / f"torch_{case}.npz", about=np.array(about), float32=narrow, float64=wide)
    write_absent(w0, gradients)


if __name__ == "__main__":
    main()
