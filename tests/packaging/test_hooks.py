"""`make hooks`, in a repository of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not (shutil.which("git") and shutil.which("make")), reason="needs git and make"),
]


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    around = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "MAKE"))}
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)


def test_a_hook_runs_lint_and_replaces_no_other(tmp_path: Path) -> None:
    _run(tmp_path, "git", "init", "--quiet")
    shutil.copy(ROOT / "Makefile", tmp_path)
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    for _ in range(2):
        assert _run(tmp_path, "make", "hooks").returncode == 0
        assert os.access(hook, os.X_OK)
        assert hook.read_text() == "#!/bin/sh\nexec make --silent lint\n"
    hook.write_text("#!/bin/sh\nmine\n")
    refused = _run(tmp_path, "make", "hooks")
    assert refused.returncode != 0
    assert "pre-commit exists" in refused.stderr
    assert "mine" in hook.read_text()
