"""The search for a planted error: seeds run on a copy of the project that has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .command import PROJECT
from .planted import Planted

PARTS = ("coordinator", "dbelief", "ps_server", "worker", "tests/simulation")
FILES = ("tests/memory_network.py",)
OWN_PACKAGES = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""
"""Start of every interpreter on a copy: the editable installation would import the original."""
TIMEOUT_S = 3600.0


def plant(error: Planted, project: Path) -> None:
    """Change a copy of the project.

    Raises
    ------
    ValueError
        The text to replace does not occur exactly once.
    """
    file = project / error.file
    text = file.read_text()
    if text.count(error.before) != 1:
        raise ValueError(f"{error.name}: its text occurs {text.count(error.before)} times in {error.file}")
    file.write_text(text.replace(error.before, error.after))


def search_for(error: Planted, seeds: int, processes: int) -> str:
    """The first violation in these seeds, with its seed; "" where there is none.

    Raises
    ------
    RuntimeError
        The command failed on the copy without a violation: that is no finding.
    """
    copy = Path(tempfile.mkdtemp(prefix=f"{error.name}-"))  # of its own: several searches may run at once
    try:
        for part in PARTS:
            shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy2(PROJECT / name, copy / name)
        (copy / "sitecustomize.py").write_text(OWN_PACKAGES)
        plant(error, copy)
        command = [sys.executable, "-m", "tests.simulation", "--stop", f"--seeds={seeds}", f"--processes={processes}"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if not ended.returncode:
            return ""
        found = next((line for line in ended.stdout.splitlines() if line.startswith("seed ")), "")
        if not found:
            raise RuntimeError(f"{error.name}: the simulation failed on the copy: {ended.stderr.strip()[-300:]}")
        return found
    finally:
        shutil.rmtree(copy, ignore_errors=True)
