"""A run's result read into another job's vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dbelief.core.layout import Layout
from dbelief.errors import DataError, ModelError, SnapshotError, UserError
from dbelief.rundir.result import read_result
from tests.assembled import assembled
from tests.dbelief.monitor.test_status import JOB
from tests.dbelief.rundir.test_export import LAYOUT, finished, flat, write

TENSORS = {"scale": (), "w": (4, 6), "b": (6,)}
"""The run's tensors in another order, and on one rank."""


def layout_of(**changed: tuple[int, ...] | None) -> Layout:
    shapes = {name: shape for name, shape in {**TENSORS, **changed}.items() if shape is not None}
    return Layout.of({name: np.empty(shape, np.float32) for name, shape in shapes.items()})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that was killed at its start."""
    folder = tmp_path / "runs" / "digits"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    return folder


def test_a_run_that_ended_gives_its_model(run: Path) -> None:
    finished(run, flat(1))
    write(run, "000000000700-0001", flat(2))
    layout = layout_of()
    out = np.full(layout.size, np.nan, np.float32)
    assert read_result(run, layout, out) == str(run / "model.safetensors")
    for name, tensor in assembled(LAYOUT, flat(1)).items():
        assert np.array_equal(assembled(layout, out)[name], tensor)


@pytest.mark.parametrize(("keep", "best", "sign"), [("last", "best.1", 1), ("best", "best.1", -1), ("best", None, 1)])
def test_a_run_that_has_not_ended_gives_its_newest_set(run: Path, keep: str, best: str | None, sign: int) -> None:
    (run / "job.yaml").write_text(JOB + f"evaluate: {{keep: {keep}}}\n")
    write(run, "000000000600-0001", flat(1))
    newest = write(run, "000000000700-0002", flat(2), best=best)
    out = np.full(LAYOUT.size, np.nan, np.float32)
    taken = read_result(run, LAYOUT, out)
    assert taken == f"vector {'best.1' if sign < 0 else 'w'!r} of snapshot set {newest}, after 700 samples"
    assert np.array_equal(out, sign * flat(2))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"w": (6, 4)}, r"tensor 'w' is \(4, 6\) there, and \(6, 4\) in the job's"),
        ({"b": None}, r"tensor 'b' is \(6,\) there, and missing in the job's"),
        ({"c": (2,)}, r"tensor 'c' is missing there, and \(2,\) in the job's"),
    ],
)
def test_another_model_is_refused(
    run: Path, ended: bool, changed: dict[str, tuple[int, ...] | None], says: str
) -> None:
    write(run, "000000000700-0001", flat(2))
    if ended:
        finished(run, flat(1))
    layout = layout_of(**changed)
    out = np.zeros(layout.size, np.float32)
    with pytest.raises(ModelError, match=rf"/runs/digits: holds another model: {says}$"):
        read_result(run, layout, out)
    assert not out.any()


def test_missing_or_damaged_result_is_a_one_line_error(run: Path) -> None:
    out = np.zeros(LAYOUT.size, np.float32)
    with pytest.raises(UserError, match=r"digits: holds neither model\.safetensors nor a complete snapshot set$"):
        read_result(run, LAYOUT, out)
    (write(run, "000000000700-0001", flat(2)) / "shard-1.safetensors").write_bytes(b"\0")
    with pytest.raises(SnapshotError, match="no snapshot set is whole"):
        read_result(run, LAYOUT, out)
    finished(run, flat(1))
    (run / "model.safetensors").write_bytes(b"\1\0\0")
    with pytest.raises(DataError, match=r"digits/model\.safetensors: cannot be read"):
        read_result(run, LAYOUT, out)
