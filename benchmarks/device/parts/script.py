"""A torch script on the device: its `sync.step`, beside the step of the same optimiser without dbelief.

On the stand-in, whose arrays are none of torch's, torch computes on the processor.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from benchmarks.device.findings import Findings
from benchmarks.workers import script_step

PARAMETERS, STEPS = (100_000, 10_000_000), 100
SMALL_PARAMETERS, SMALL_STEPS = (1_000,), 10


def measure(found: Findings, small: bool) -> None:
    """Run the script of `benchmarks.workers.script_step` with models of each size."""
    if (why := missing(small)) is not None:
        found.left_out("script", why)
        return
    sizes, steps = (SMALL_PARAMETERS, SMALL_STEPS) if small else (PARAMETERS, STEPS)
    for parameters in sizes:
        with tempfile.TemporaryDirectory() as folder:
            times = script_step.by_script(Path(folder), parameters, steps, "cpu" if small else "cuda")
        beside = {"optimizer.step()": 1e3 * times.plain_s, "first sync.step": 1e3 * times.first_s}
        found.figure(f"sync.step, {parameters:,} parameters", 1e3 * times.step_s, "ms", beside)


def missing(small: bool) -> str | None:
    """Why there is no torch for this device; None where there is."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if small:
        return None
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"
