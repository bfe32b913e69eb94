"""A file of nested state gives back all of it, or says that it is damaged."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.checkpoint import state_file
from dbelief.checkpoint.safetensors_io import BFLOAT16
from dbelief.checkpoint.state_file import PackedState, read_state, write_state
from dbelief.errors import CorruptSnapshot, SnapshotError, UserError

ABOUT = {"run": 1 << 63}
MOMENTS = np.arange(6, dtype=np.float32).reshape(2, 3)


class Odd:
    """Of no type that is kept."""


def packed(state: dict[str, Any]) -> PackedState:
    return PackedState(state, lambda value: value.copy() if isinstance(value, np.ndarray) else None)


def written(folder: Path) -> Path:
    path = folder / "replica-0.safetensors"
    write_state(path, ABOUT, packed({"optimizer": {"state": {0: {"exp_avg": MOMENTS}}}}))
    return path


def test_nested_state_is_read_back(tmp_path: Path) -> None:
    path = written(tmp_path)
    state: dict[str, Any] = {
        "optimizer": {"state": {0: {"step": np.float32(3), "exp_avg": MOMENTS}}, "groups": [{"betas": (0.9, 0.99)}]},
        "schedule": {"milestones": Counter({3: 1, 7: 2}), "best": math.inf, "last": None, "mode": "min", "on": True},
        "average": OrderedDict(half=MOMENTS.view(np.uint32).astype(np.uint16).view(BFLOAT16), empty=MOMENTS[:0]),
    }
    write_state(path, ABOUT, packed(state))
    about, found = read_state(path, lambda array: array)
    assert about == ABOUT
    assert found["schedule"] == state["schedule"]
    assert type(found["schedule"]["milestones"]) is Counter
    assert found["optimizer"]["groups"] == [{"betas": (0.9, 0.99)}]
    assert found["optimizer"]["state"][0]["step"] == 3
    for one, other in (
        (found["optimizer"]["state"][0]["exp_avg"], MOMENTS),
        (found["average"]["half"], state["average"]["half"]),
        (found["average"]["empty"], MOMENTS[:0]),
    ):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_a_copy_keeps_what_it_was() -> None:
    moments = MOMENTS.copy()
    copy = packed({"optimizer": moments})
    moments += 1
    np.testing.assert_array_equal(copy.arrays["optimizer"], MOMENTS)


def test_every_damage_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    raw = path.read_bytes()
    for damaged in (b"", raw[:4], raw[: len(raw) // 2], raw[:-1], raw + b"\0", b"\x80\x04N."):
        path.write_bytes(damaged)
        with pytest.raises(CorruptSnapshot, match=r"replica-0\.safetensors: "):
            read_state(path, lambda array: array)
    for place in range(0, len(raw), 3):
        flipped = bytearray(raw)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(SnapshotError, match=r"replica-0\.safetensors: "):
            read_state(path, lambda array: array)
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "none", lambda array: array)


def test_what_is_not_kept_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"state optimizer/groups/1/how is a Odd: kept are tensors, numbers, texts"):
        packed({"optimizer": {"groups": [{}, {"how": Odd()}]}})
    with pytest.raises(UserError, match=r"state optimizer: a key is a Odd"):
        packed({"optimizer": {Odd(): 1}})
    monkeypatch.setattr(state_file, "MOST_BYTES", 40)
    packed({"optimizer": [MOMENTS]})
    with pytest.raises(UserError, match=r"state optimizer/1: up to it the state has 48 bytes, and 40 are kept"):
        packed({"optimizer": [MOMENTS, MOMENTS]})
