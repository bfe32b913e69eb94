"""Pictures that a launcher draws: their code is loaded while the job trains, and they are there when it returns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click
import pytest

from dbelief.errors import WriteFailed
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.tools.report import at_end as module
from dbelief.tools.report.at_end import SOON_S, PicturesAtEnd, are_wanted


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each time that the drawing code was loaded."""
    found: list[str] = []
    monkeypatch.setattr(module, "load_drawing_code", lambda: found.append("loaded"))
    monkeypatch.setattr(module, "draw_pictures", lambda *_: found.append("drawn"))
    return found


@pytest.mark.parametrize(
    ("state", "eta_s", "expected"),
    [
        (wire.STATE_INITIALISING, 0.0, False),
        (wire.STATE_READY, math.nan, False),
        (wire.STATE_READY, 2 * SOON_S, False),
        (wire.STATE_READY, SOON_S, True),
        (wire.STATE_CLOSING, math.nan, True),
        (wire.STATE_FAILED, math.nan, True),
    ],
)
def test_drawing_code_is_loaded_towards_the_end(
    state: wire.State.ValueType, eta_s: float, expected: bool, tmp_path: Path, loads: list[str]
) -> None:
    pictures = PicturesAtEnd(tmp_path, "digits")
    for _ in range(2):
        pictures.look(wire.StatusReply(state=state, eta_s=eta_s))
    pictures.draw()
    assert loads == ["loaded"] * expected + ["drawn"]


def test_pictures_of_a_run_are_drawn_into_its_folder(tmp_path: Path) -> None:
    event = {"event": "progress", "elapsed_s": 1.0, "samples": 100, "epoch": 1.0, "loss": 0.5, "staleness": 0.0}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    PicturesAtEnd(tmp_path, "digits").draw()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_error_names_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    (tmp_path / "curves.png").mkdir()
    with pytest.raises(WriteFailed, match=r"curves\.png: the pictures cannot be written: Is a directory"):
        PicturesAtEnd(tmp_path, "digits").draw()


@pytest.mark.parametrize("value", ["1", "0", "true", "False", "yes", "NO", "on", "off", "t", "f", "y", "n"])
def test_the_variable_means_what_it_means_for_the_coordinator(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBELIEF_PICTURES", value)
    assert are_wanted() == click.BOOL.convert(value, None, None)
    monkeypatch.delenv("DBELIEF_PICTURES")
    assert are_wanted()
