"""The editable install, from a script that lies beside the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; sys.path.insert(0, {!r}); import backend; print(backend.build_editable({!r}))"
SCRIPT = """
import site
site.addsitedir({!r})
import dbelief, dbelief.ps_server.store
print(dbelief.__file__, dbelief.ps_server.store.__file__, callable(dbelief.__getattr__))
"""

pytestmark = pytest.mark.processes


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_package_is_found_beside_a_clone_named_dbelief(tmp_path: Path) -> None:
    clone, installed = tmp_path / "dbelief", tmp_path / "installed"
    shutil.copytree(ROOT / "deploy" / "packaging", clone / "deploy" / "packaging")
    for name in ("dbelief", "ps_server", "worker", "coordinator"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "docs").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "docs/__init__.py"):
        shutil.copy(ROOT / name, clone / name)
    backend = str(clone / "deploy" / "packaging")
    run(sys.executable, "-c", BUILD.format(backend, str(tmp_path)), cwd=clone)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    # No site-packages: this environment's own install of the project stays out of it.
    (tmp_path / "beside.py").write_text(SCRIPT.format(str(installed)))
    found = run(sys.executable, "-S", tmp_path / "beside.py", cwd=tmp_path)
    assert found.split() == [
        str(clone / "dbelief" / "__init__.py"),
        str(clone / "ps_server" / "store" / "__init__.py"),
        "True",
    ]
