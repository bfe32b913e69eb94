"""Snapshot sets that are torn, foreign, newer, or missing: resume and export name the set and the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dbelief.checkpoint.checksummed_json import checksum
from dbelief.cli.main import main
from tests.dbelief.monitor.test_status import JOB
from tests.dbelief.rundir.test_export import flat, write
from tests.negative.harness import Wrong

OLD, NEW = "000000000600-0001", "000000000700-0002"
EXPORT = "export runs/digits"
RESUME = "coordinator runs/digits/job.yaml --run-folder runs/digits --listen 127.0.0.1:0 --resume"
NONE_WHOLE = "no snapshot set is whole; "
Damage = Callable[[Path], object]


def sealed(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change a file as another program would have written it."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        del content["crc32"]
        change(content)
        (folder / name).write_text(json.dumps({**content, "crc32": checksum(content)}))

    return damage


def flip(name: str, place: int) -> Damage:
    """Change one bit."""

    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[place] ^= 1
        (folder / name).write_bytes(content)

    return damage


def cut_short(name: str) -> Damage:
    """Leave half of a file."""
    return lambda folder: (folder / name).write_bytes((half := (folder / name).read_bytes())[: len(half) // 2])


def gone(name: str) -> Damage:
    """Leave nothing of a file."""
    return lambda folder: (folder / name).unlink()


def row(name: str, damage: Damage, says: str, code: int = 1, command: str = RESUME) -> tuple[Wrong, Damage]:
    """A set with this damage."""
    return Wrong(name, command, says, code), damage


ROWS = [
    row("torn data", cut_short("shard-1.safetensors"),
        rf"{NONE_WHOLE}.*/{OLD}/shard-1\.safetensors: is [0-9]+ bytes long, and was written with [0-9]+"),
    row("data with another bit", flip("shard-0.safetensors", -1),
        rf"{NONE_WHOLE}.*/{OLD}/shard-0\.safetensors: segment [0-9]+ does not match its checksum"),
    row("data with another header", flip("shard-0.safetensors", 12),
        rf"{NONE_WHOLE}.*/{OLD}/shard-0\.safetensors: its header does not match its checksum"),
    row("a torn manifest", cut_short("shard-0.json"), rf"{NONE_WHOLE}.*/{OLD}/shard-0\.json: cannot be read: .*"),
    row("a manifest with another number", lambda f: (f / "shard-0.json").write_text(
        (f / "shard-0.json").read_text().replace('"applied": 1', '"applied": 2')),
        rf"{NONE_WHOLE}.*/{OLD}/shard-0\.json: does not match its checksum"),
    row("a manifest that names a file elsewhere", sealed("shard-0.json", lambda c: c.update(file="../../job.yaml")),
        rf"{NONE_WHOLE}.*/{OLD}/shard-0\.json: is no manifest of a shard's part: .*"),
    row("a shard's data that is missing", gone("shard-1.safetensors"),
        rf"{NONE_WHOLE}.*/{OLD}/shard-1\.safetensors: cannot be read: No such file or directory"),
    row("a shard's manifest that is missing", gone("shard-1.json"),
        rf"{NONE_WHOLE}.*/{OLD}: set {OLD} lacks segment 3 \([0-9] missing\)"),
    row("two manifests of one shard", lambda f: (f / "shard-7.json").write_bytes((f / "shard-0.json").read_bytes()),
        rf"{NONE_WHOLE}.*/{OLD}/shard-7\.json: holds segment 0, which another shard's manifest holds too"),
    row("another job's set", sealed("set.json", lambda c: c.update(job="mnist")),
        rf".*/{OLD}/set\.json: belongs to job 'mnist', not 'digits'"),
    row("another rule's set", sealed("shard-0.json", lambda c: c.update(rule="adam")),
        rf".*/{OLD}/shard-0\.json: holds the state of rule adam; the job's is sgd"),
    row("a newer format", sealed("set.json", lambda c: c.update(format=99)),
        rf".*/{OLD}/set\.json: format 99 is newer than 2, which this version reads"),
    row("an older format of a part", sealed("shard-0.json", lambda c: c.update(format=1)),
        rf".*/{OLD}/shard-0\.json: format 1 is older than 2, which this version reads"),
    row("a torn set.json", cut_short("set.json"), rf"{NONE_WHOLE}.*/{OLD}/set\.json: cannot be read: .*"),
    row("a set.json without a state", lambda folder: None,
        rf".*/{OLD}/set\.json: holds no job state: KeyError\(.*\)"),
    row("a set.json that is missing", gone("set.json"),
        r".*/runs/digits/snapshots: no complete snapshot set to resume from",
        2),
    row("export of a set without set.json", gone("set.json"),
        r"runs/digits: holds neither model\.safetensors nor a complete snapshot set", 2, EXPORT),
    row("export of torn data", cut_short("shard-1.safetensors"),
        rf"{NONE_WHOLE}runs/digits/snapshots/{OLD}/shard-1\.safetensors: is [0-9]+ bytes long.*", 1, EXPORT),
    row("export of another job's set", sealed("set.json", lambda c: c.update(job="mnist")),
        rf".*/{OLD}/set\.json: belongs to job 'mnist', not 'digits'", 1, EXPORT),
    row("export of a set without a model", sealed("set.json", lambda c: c.pop("boxes")),
        rf".*/{OLD}/set\.json: does not describe the model: KeyError\('boxes'\)", 1, EXPORT),
    row("export of a vector that is not there", lambda folder: None,
        rf".*/{OLD}: holds no vector 'accrued' whole; there is: .*", 2, f"{EXPORT} --vector accrued"),
    row("export of the best where none is", lambda folder: None,
        rf".*/{OLD}: holds no best parameters: .*", 2, f"{EXPORT} --vector best"),
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with one whole set."""
    folder = tmp_path / "runs" / "digits"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    write(folder, OLD, flat(1))
    return folder


@pytest.mark.parametrize(("wrong", "damage"), ROWS, ids=lambda value: str(value) if isinstance(value, Wrong) else "")
def test_a_wrong_set_is_refused(
    wrong: Wrong, damage: Damage, assert_refused: Callable[[Wrong], None], run: Path
) -> None:
    damage(run / "snapshots" / OLD)
    assert_refused(wrong)


def test_skipped_corrupt_set_is_reported(run: Path, assert_refused: Callable[[Wrong], None]) -> None:
    cut_short("shard-0.safetensors")(write(run, NEW, flat(2)))
    done = CliRunner().invoke(main, EXPORT.split())
    assert done.exit_code == 0
    (said,) = done.stderr.splitlines()
    assert said.startswith(
        f"snapshot set {NEW} is not whole, an older one is taken: runs/digits/snapshots/{NEW}/shard-0."
    )
    assert f"of snapshot set runs/digits/snapshots/{OLD}, after 700 samples" in done.stdout
