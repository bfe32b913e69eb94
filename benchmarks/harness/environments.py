"""Virtual environments with other systems' packages, made once below `.cache/`."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import checkout
from dbelief.errors import RuntimeFailure

TORCH = "torch==2.13.0"
INSTALL_S = 900.0


def python_with(name: str, requirements: Sequence[str], install_s: float = INSTALL_S) -> Path:
    """Python of the environment `.cache/NAME` with these packages, made at the first call.

    Raises
    ------
    RuntimeFailure
        It cannot be made in so many seconds; the message has pip's last line.
    """
    folder = checkout.ROOT / ".cache" / name
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(requirements)
    if done.exists() and done.read_text() in ("", wanted):
        return python
    print(f"installing {', '.join(requirements)} into {folder} (once)", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "-q", *requirements]
    try:
        ended = subprocess.run(command, timeout=install_s, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeFailure(f"pip install {' '.join(requirements)}: not done after {install_s:g} s") from None
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise RuntimeFailure(f"pip install {' '.join(requirements)}: {(lines or ['no message'])[-1]}")
    done.write_text(wanted)
    return python
