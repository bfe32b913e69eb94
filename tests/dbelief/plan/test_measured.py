"""What is taken from a run that is planned again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.plan import measured as module
from dbelief.plan.measured import Measured, measured
from tests.jobs import small_file


@pytest.mark.parametrize(("numbers", "parameters"), [((60, 40), 100), ((0, 0), None)])
def test_a_run_in_progress_has_its_shards_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, int], parameters: int | None
) -> None:
    """A follower holds the same numbers again; its shards may not have begun."""
    shards = [{"role": "ps", "parameters": count, "follows": follows} for count in numbers for follows in (False, True)]
    status: dict[str, Any] = {"members": [{"role": "worker", "samples": 5}, *shards]}
    monkeypatch.setattr(module, "get_status", lambda place: status)
    small_file(tmp_path)
    assert measured(tmp_path) == Measured(parameters, 32, None)
