"""The wheel in an empty environment of each supported Python, outside every checkout: installed, and a job trained.

    make test-pythons                        those of PATH and of pyenv; dependencies come from pip's package index
    make test-pythons ARGS='3.12 3.13'       these versions

A line for each version. Exit code 1 if an installation, a command or the job fails, or if code of dbelief causes a
deprecation warning; a version without an interpreter is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.packaging.locked import project, pythons

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ("train", "job.yaml", "--quiet", "--set", "limits.epochs=10")
LEAST_ACCURACY = 0.9
DEADLINE_S = 900.0


class Failed(Exception):
    """A command ended with an error, or its result is wrong."""


@dataclass(frozen=True)
class Run:
    """Figures of one interpreter; times in seconds."""

    install_s: float
    help_s: float
    train_s: float
    accuracy: float

    def __str__(self) -> str:
        """In one line."""
        return (
            f"installed in {self.install_s:.1f} s, --help in {self.help_s:.2f} s, "
            f"trained in {self.train_s:.1f} s, test accuracy {100 * self.accuracy:.2f} %"
        )


def interpreter(version: str) -> Path | None:
    """The interpreter of a version like 3.12: of pyenv, where each file is one; otherwise of PATH, if it runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    found = str(own[-1]) if own else shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return Path(found)


def check(python: Path, wheel: Path, folder: Path) -> Run:
    """Install the wheel in a new environment below a folder, and use it there.

    Raises
    ------
    Failed
        A command ended with an error, the accuracy is low, or a deprecation warning names a file of dbelief.
    """
    environment, bin_folder = folder / "environment", folder / "environment" / "bin"
    _run(folder, python, "-m", "venv", environment)
    start_s = time.perf_counter()
    _run(folder, bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    installed_s = time.perf_counter()
    printed = _run(folder, bin_folder / "dbelief", "--help")
    helped_s = time.perf_counter()
    printed += _run(folder, bin_folder / "dbelief", "help", "install")
    shutil.copy(ROOT / "examples" / "digits.yaml", folder / "job.yaml")
    begun_s = time.perf_counter()
    printed += _run(folder, bin_folder / "dbelief", *TRAIN)
    ended_s = time.perf_counter()
    summary = json.loads((folder / "runs" / "digits" / "summary.json").read_text())
    if summary["test_accuracy"] < LEAST_ACCURACY:
        raise Failed(f"test accuracy {summary['test_accuracy']}, wanted at least {LEAST_ACCURACY}")
    logs = [log.read_text() for log in sorted((folder / "runs" / "digits" / "logs").iterdir())]
    warned = re.findall(r"^.*/dbelief/.*DeprecationWarning.*$", "\n".join([printed, *logs]), re.MULTILINE)
    if warned:
        raise Failed(f"{len(warned)} deprecation warnings, the first: {warned[0]}")
    return Run(installed_s - start_s, helped_s - installed_s, ended_s - begun_s, summary["test_accuracy"])


def _run(folder: Path, *command: str | Path) -> str:
    """What a command prints, with warnings; no variable of this environment's Python or of dbelief changes it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DBELIEF", "NUMBA"))}
    environment = {**kept, "PYTHONWARNINGS": "always::DeprecationWarning", "XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def main(versions: list[str]) -> int:
    """Check versions, by default those of the classifiers; the exit code."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    code = 0
    for version in versions or pythons(project()):
        python = interpreter(version)
        if python is None:
            print(f"{version}: skipped: no python{version} on PATH, and none of pyenv", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{version}: {check(python, wheel, Path(folder))}", flush=True)
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"{version}: FAILED: {error}", flush=True)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
