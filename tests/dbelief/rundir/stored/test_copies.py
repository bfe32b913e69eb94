"""A local copy of a run has what its readers need, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.checkpoint.set_storage import LocalSets, latest_valid
from dbelief.errors import DataError, SnapshotError, UserError
from dbelief.rundir.stored.copies import copy_until_exit, local_copy, parse_run
from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url
from tests.dbelief.checkpoint.test_object_sets import IDS, complete
from tests.dbelief.monitor.test_status import SUMMARY

JOB = """
name: digits
model: {layers: [{dense: 2}], loss: square}
data: {source: none}
strategy: {name: downpour, batch: 1, rule: {name: momentum, rate: 1, mu: 0.9}}
limits: {samples: 3}
replicas: 0
"""
WITH_TABLES = """
name: digits
model: {layers: [{embedding_bag: t}, {dense: 1}], loss: logistic}
data: {source: bags, format: vw, files: t.vw}
strategy: {name: downpour, batch: 1, rule: {name: momentum, rate: 1, mu: 0.9}}
tables: {t: {width: 2, rule: {name: sgd, rate: 1}}}
limits: {samples: 3}
"""


@pytest.fixture
def there(run: Url) -> ObjectStore:
    """The store of a run that has a job file and two sets."""
    store = connect(run)
    store.replace(run / "job.yaml", JOB.encode())
    store.replace(run / "events" / "000001.jsonl", b"{}\n")
    store.replace(run / "events" / "000002.jsonl", b"[]\n")
    store.replace(run / "logs" / "worker-0.log", b"not needed")
    for set_id in IDS[:2]:
        complete(ObjectSets(store, run / "snapshots"), set_id)
    return store


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {".events.jsonl.uploaded"}


def newest(folder: Path) -> str:
    return latest_valid(LocalSets(folder / "snapshots"), "digits", "momentum")[0]


@pytest.mark.usefixtures("there")
def test_small_files_are_copied_and_removed(run: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_copy(run) as folder:
        assert folder.name == "far"
        assert names(folder) == {"job.yaml", "events.jsonl"}
        assert (folder / "events.jsonl").read_bytes() == b"{}\n[]\n"
    assert not folder.exists()
    ends: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", ends.append)
    kept = copy_until_exit(run)
    assert names(kept) == {"job.yaml", "events.jsonl"}
    ends[0]()
    assert not kept.exists()


def test_a_folder_is_its_own_copy(tmp_path: Path) -> None:
    with local_copy(tmp_path, parameters=True) as folder:
        assert folder == tmp_path


def test_a_run_that_has_not_ended_comes_with_its_newest_valid_set(there: ObjectStore, run: Url) -> None:
    with local_copy(run, parameters=True) as folder:
        assert newest(folder) == IDS[1]
    (damaged,) = [url for url in there.list(run / "snapshots" / IDS[1]) if url.name == "shard-1.safetensors"]
    there.replace(damaged, there.read(damaged)[:-1])
    with local_copy(run, parameters=True) as folder:
        assert newest(folder) == IDS[0]
        assert [path.name for path in (folder / "snapshots").iterdir()] == [IDS[0]]
    for url in there.list(run / "snapshots" / IDS[0]):
        if url.name == "shard-1.json":
            there.delete([url])
    with pytest.raises(SnapshotError, match="no snapshot set is whole"), local_copy(run, parameters=True):
        pass


def test_a_run_that_has_ended_comes_with_its_model(there: ObjectStore, run: Url) -> None:
    there.replace(run / "model.safetensors", b"model")
    there.replace(run / "summary.json", json.dumps({**SUMMARY, "state": "done"}).encode())
    with local_copy(run) as folder:
        assert names(folder) == {"job.yaml", "events.jsonl", "summary.json"}
    with local_copy(run, parameters=True) as folder:
        assert names(folder) == {"job.yaml", "events.jsonl", "summary.json", "model.safetensors"}
    with local_copy(run, parameters=True, sets=True) as folder:
        assert names(folder) == {"job.yaml", "events.jsonl", "summary.json", "model.safetensors", "snapshots"}
    there.replace(run / "job.yaml", WITH_TABLES.encode())
    with local_copy(run, parameters=True) as folder:
        assert names(folder) == {"job.yaml", "events.jsonl", "summary.json", "model.safetensors", "snapshots"}


def test_what_is_no_run(run: Url, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{run}: is no run: it holds no job\.yaml$"), local_copy(run):
        pass
    assert parse_run(str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="must not contain a login"):
        parse_run("s3://key:secret@bucket/runs/far")


def test_a_model_file_is_copied_and_named_by_its_url(run: Url) -> None:
    url = run.parent / "exported.safetensors"
    connect(url).replace(url, b"content")
    with local_copy(url, parameters=True) as file:
        assert (file.name, file.read_bytes()) == ("exported.safetensors", b"content")
    with pytest.raises(DataError, match=rf"^{url}: cannot be read$"), local_copy(url, parameters=True) as file:
        raise DataError(f"{file}: cannot be read")
    assert not file.exists()
    with pytest.raises(DataError, match=rf"^{url}: is no run"), local_copy(url):
        pass
