"""Whole jobs of one replica that train on the device, beside the same ones, by the same seed, on the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import dbelief
from benchmarks.device.findings import Findings, check_close
from benchmarks.harness import checkout
from dbelief.rundir.summary import Summary

APART = 0.05
"""How far an accuracy, or a loss as a share of the host's, may be from the host's: rounding makes the ways of two
trainings part, and in so short ones the last steps still count."""
SEED = 1
PHOTOGRAPHS = "made.npz"
"""Images for the autoencoder, in the working directory."""


@dataclass(frozen=True)
class Example:
    """A job of `examples/`, shortened.

    Attributes
    ----------
    large, small
        Fields for a device, and for the stand-in; "." in a name is written "__".
    images
        Number and side of those that are made for it; None: it has its own data.
    """

    large: Mapping[str, Any]
    small: Mapping[str, Any]
    mnist: bool = False
    images: tuple[tuple[int, int], tuple[int, int]] | None = None


EXAMPLES = {
    "digits": Example({"limits__epochs": 10}, {"limits__samples": 640}),
    "mnist": Example({"limits__epochs": 2}, {"limits__samples": 2_000}, mnist=True),
    "mnist_lenet": Example({"limits__samples": 12_800}, {"limits__samples": 640}, mnist=True),
    "autoencoder": Example({"limits__epochs": 2}, {"limits__epochs": 1}, images=((6_000, 32), (200, 20))),
}


def measure(found: Findings, small: bool) -> None:
    """Train each on both."""
    for name, example in EXAMPLES.items():
        if example.mnist and not has_mnist():
            found.left_out(name, "DBELIEF_DATA names no folder that holds mnist/")
            continue
        fields = dict(example.small if small else example.large)
        if example.images is not None:
            make_images(Path(PHOTOGRAPHS), *example.images[small])
            fields["data__file"] = str(Path(PHOTOGRAPHS).absolute())
        device, host = (train(checkout.EXAMPLES / f"{name}.yaml", where, fields) for where in ("cuda", "cpu"))
        report(found, name, device, host)


def train(job: Path, device: Literal["cuda", "cpu"], fields: Mapping[str, Any], replicas: int = 1) -> Summary:
    """Train a job from its first sample on, without a warm start and evaluations on the way."""
    fixed: dict[str, Any] = {"seed": SEED, "strategy__warm_start": None, "evaluate__every": None}
    output = str(Path(f"{device}-{replicas}").absolute())
    return dbelief.train(job, device=device, replicas=replicas, output=output, **fixed, **fields).summary


def report(found: Findings, name: str, device: Summary, host: Summary) -> None:
    """Write the figures of a job, and check that the device learnt what the host did."""
    for what in ("accuracy", "loss"):
        one, other = (getattr(summary, f"test_{what}") for summary in (device, host))
        if one is not None:
            found.figure(f"{name}, test {what}", one, beside={"host": other})
            check_close(f"{name}, test {what}", one, other, APART * (abs(other or 0.0) if what == "loss" else 1.0))
    milliseconds = [1e3 * summary.phase_seconds["0"]["compute"] / summary.steps for summary in (device, host)]
    found.figure(f"{name}, computing in a step", milliseconds[0], "ms", {"host": milliseconds[1]})


def has_mnist() -> bool:
    """Whether MNIST is where its jobs look for it."""
    return "DBELIEF_DATA" in os.environ and (Path(os.environ["DBELIEF_DATA"]) / "mnist").is_dir()


def make_images(path: Path, count: int, side: int) -> None:
    """Write images of smooth noise, of mean 0 and variance 1, whose neighbours are alike; the labels are not read."""
    noise = np.random.default_rng(SEED).standard_normal((count, side, side, 1), dtype=np.float32)
    for axis in (1, 2):
        noise += np.roll(noise, 1, axis) + np.roll(noise, 2, axis)
    noise /= noise.std()
    np.savez(path, inputs=noise, targets=np.arange(count) % 10)
