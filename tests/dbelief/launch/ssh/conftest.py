"""The stand-in for `ssh`, first on `PATH`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .stand_in import StandIn


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(made.folder), prepend=os.pathsep)
    return made
