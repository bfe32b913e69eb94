"""The search for a planted error: seeds run on a copy of the project that has it.

Where no invariant is violated, their traces are judged by the protocol's model (`tests.conformance`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.command import PROJECT

from .planted import Planted

PARTS = ("coordinator", "dbelief", "ps_server", "worker", "tests/conformance", "tests/model", "tests/simulation")
SEARCHES = ("tests.simulation", "tests.conformance")
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


def search_for(
    error: Planted, seeds: int, processes: int, searches: Sequence[str] = SEARCHES, more: Sequence[str] = ()
) -> str:
    """The first violation in these seeds, or the first run that is none of the model; "" where there is neither.

    `more`: further options of the searches.

    Raises
    ------
    RuntimeError
        A command failed on the copy without a violation: that is no finding.
    """
    copy = Path(tempfile.mkdtemp(prefix=f"{error.name}-"))  # of its own: several searches may run at once
    try:
        for part in PARTS:
            shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy2(PROJECT / name, copy / name)
        (copy / "sitecustomize.py").write_text(OWN_PACKAGES)
        plant(error, copy)
        options = [*more, *([f"--job={error.job}"] if error.job else [])]
        found = (_search(copy, module, seeds, processes, options) for module in searches)
        return next((line for line in found if line), "")
    except RuntimeError as failure:
        raise RuntimeError(f"{error.name}: {failure}") from None
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _search(copy: Path, module: str, seeds: int, processes: int, more: Sequence[str]) -> str:
    """The first line of a finding that a command prints on the copy; "" where it finds nothing."""
    ended = subprocess.run(
        [sys.executable, "-m", module, "--stop", f"--seeds={seeds}", f"--processes={processes}", *more],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if not ended.returncode:
        return ""
    found = next((line for line in ended.stdout.splitlines() if line.startswith("seed ")), "")
    if not found:
        raise RuntimeError(f"{module} failed on the copy: {ended.stderr.strip()[-300:]}")
    return f"{module}: {found}"
