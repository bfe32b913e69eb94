"""Sets of a table by changes on real shards; no figure of time is checked against a limit here."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.shards import table_sets
from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.layout import SegmentSpan

ONE = StoredSegment(SegmentSpan(1, 1, 0), 0, 5, 0, 0, {}, {"keys": np.zeros(2, np.float32)})


@pytest.mark.processes
def test_changes_take_fewer_bytes_and_restore_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = table_sets.measure(3_000, [0.02], 1, tmp_path)
    few, evicting = found["rows"]
    for row in found["rows"]:
        assert row["equal"]
        assert 0 < row["bytes"] < row["full_bytes"] == row["restore_full_bytes"] < row["restore_bytes"]
        assert min(row["pushes"], row["full_pushes"]) >= table_sets.LEAST
        assert min(row["s"], row["full_s"], row["restore_s"], row["restore_full_s"], row["push_ms"]) > 0
    assert 60 <= few["changed"] < evicting["changed"]
    assert evicting["removed"] >= 3_000 // 10
    table_sets.show(found)
    assert '"table_rows": 3000' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"version": 7}, True),
        ({"applied": 6}, False),
        ({"span": SegmentSpan(2, 1, 0)}, False),
        ({"arrays": {"keys": np.array([0.0, -0.0], np.float32)}}, False),
        ({"arrays": {}}, False),
    ],
)
def test_rows_are_compared_bit_for_bit(change: dict[str, Any], same: bool) -> None:
    assert table_sets.equal([ONE, ONE], [ONE, dataclasses.replace(ONE, **change)]) is same


@pytest.mark.parametrize("text", ["0.1,0.5", "0", "nan"])
def test_a_share_beyond_which_sets_have_all_rows_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="each must be above 0, and below"):
        table_sets.shares_in(text)


def test_other_rows_end_it_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["table_sets"])
    monkeypatch.setattr(table_sets, "measure", lambda *_: {"rows": [{"share": 0.1, "equal": False}]})
    monkeypatch.setattr(table_sets, "show", lambda *_: None)
    with pytest.raises(SystemExit, match=r"differ from all rows: shares \[0\.1\]"):
        table_sets.main()
