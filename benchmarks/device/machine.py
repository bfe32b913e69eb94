"""Which device it is: its name, driver and CuPy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from benchmarks.device.bounds import DESCRIPTION_S
from benchmarks.harness import checkout
from dbelief.arrays.backend import device_bytes, select_backend
from dbelief.tools.bench.kernels import device_name


def describe() -> dict[str, Any]:
    """Describe the device that this process computes on; "" stands for what cannot be found out.

    Raises
    ------
    JobError
        There is none; the message names what is missing.
    """
    backend = select_backend("cuda")
    return {
        "device": device_name(backend),
        "device_bytes": device_bytes(backend)[0],
        "driver": _line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "cupy": getattr(backend.xp, "__version__", ""),
    }


def ask(command: list[str], environment: dict[str, str], bound_s: float = DESCRIPTION_S) -> dict[str, Any]:
    """The same of a process of its own, so that this one never loads CUDA.

    Raises
    ------
    SystemExit
        There is no device, or its driver does not answer; the reason is on standard error.
    """
    try:
        done = subprocess.run(
            command, cwd=checkout.ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=bound_s
        )
    except subprocess.TimeoutExpired:
        print(f"the device does not answer within {bound_s:g} s", file=sys.stderr)
        raise SystemExit(1) from None
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _line(command: list[str]) -> str:
    """First line that a program prints; "" where it is missing, or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=checkout.ROOT, capture_output=True, text=True)
    return "" if done.returncode else next(iter(done.stdout.splitlines()), "")
