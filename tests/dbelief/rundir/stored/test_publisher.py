"""What a coordinator's folder holds is in the store at the end, and meanwhile what it needs to go on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dbelief.errors import Deposed, RuntimeFailure
from dbelief.process.clock import ManualClock
from dbelief.rundir.stored.publisher import Publisher
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url
from tests.dbelief.rundir.stored.memory_store import FaultyMemory


def files(store: ObjectStore, run: Url) -> dict[str, bytes]:
    return {url[len(run) + 1 :]: store.read(url) for url in store.list(run)}


def test_all_files_are_there_at_the_end(store: ObjectStore, run: Url, folder: Path) -> None:
    publisher = Publisher(store, run, folder, ManualClock(autojump=True))
    (folder / "job.yaml").write_bytes(b"name: far")
    (folder / "events.jsonl").write_bytes(b"{}\n{")
    for private in ("registry", "snapshots", "logs", "record"):
        (folder / private).mkdir()
        (folder / private / "file.log").write_bytes(private.encode())
    (folder / ".dbelief-0123456789abcdef.writing").touch()
    (folder / "track.lock").touch()
    publisher.upload()
    assert files(store, run) == {"job.yaml": b"name: far", "events/000001.jsonl": b"{}\n"}
    (folder / "model.safetensors").write_bytes(bytes(3 << 20))
    publisher.finish()
    found = files(store, run)
    assert sorted(found) == ["events/000001.jsonl", "job.yaml", "logs/file.log", "model.safetensors", "record/file.log"]
    assert found["model.safetensors"] == bytes(3 << 20)


def test_a_file_is_uploaded_when_it_changes(store: ObjectStore, backend: FaultyMemory, run: Url, folder: Path) -> None:
    path = folder / "last_pass.json"
    path.write_text("1")
    first = Publisher(store, run, folder, ManualClock())
    for _ in range(3):
        first.upload()
    assert backend.requests[run / path.name] == 1
    path.write_text("22")
    first.upload()
    assert (backend.requests[run / path.name], store.read(run / path.name)) == (2, b"22")
    Publisher(store, run, folder, ManualClock()).upload()
    assert backend.requests[run / path.name] == 2, "nor by the launcher, after the coordinator"


def test_the_summary_is_last_and_the_address_goes(store: ObjectStore, run: Url, folder: Path) -> None:
    order: list[str] = []
    replace = store.replace
    store.replace = lambda url, content: (order.append(url.name), replace(url, content))[1]  # type: ignore[method-assign, func-returns-value]
    for name in ("address", "summary.json", "zebra.png", "events.jsonl"):
        (folder / name).write_text("x")
    publisher = Publisher(store, run, folder, ManualClock())
    publisher.upload()
    assert order == ["address", "zebra.png", "summary.json"]
    for name in ("address", "summary.json", "zebra.png"):
        (folder / name).unlink()
    publisher.upload()
    assert sorted(files(store, run)) == ["zebra.png"]


def test_a_store_that_is_away_is_two_lines(
    store: ObjectStore, backend: FaultyMemory, run: Url, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, path = Publisher(store, run, folder, ManualClock()), folder / "events.jsonl"
    with caplog.at_level(logging.INFO):
        for turn, error in enumerate((None, ConnectionRefusedError(), ConnectionRefusedError(), None, None)):
            backend.error = error
            with path.open("a") as file:
                file.write(f"{turn}\n")
            assert publisher.look()
    assert caplog.messages == [
        f"files of the run cannot be uploaded, and are later: {run}/events/000002.jsonl: cannot connect, in 1 attempt",
        f"files of the run are uploaded again, to {run}",
    ]
    publisher.finish()
    assert b"".join(files(store, run).values()) == b"0\n1\n2\n3\n4\n"


def test_at_the_end_a_store_is_waited_for_and_then_the_folder_named(
    store: ObjectStore, backend: FaultyMemory, run: Url, folder: Path
) -> None:
    publisher = Publisher(store, run, folder, ManualClock(autojump=True))
    (folder / "summary.json").write_text("{}")
    backend.error = ConnectionRefusedError()
    with pytest.raises(
        RuntimeFailure, match=rf"summary\.json: cannot connect, .*; what could not be uploaded is in {folder}$"
    ):
        publisher.finish()
    backend.error = OSError(28, "No space left on device")
    with pytest.raises(RuntimeFailure, match=r"summary\.json: the store is full; what could not be uploaded is in "):
        publisher.finish()
    backend.error = None
    publisher.finish()
    assert files(store, run) == {"summary.json": b"{}"}


def test_another_writer_ends_the_publisher(store: ObjectStore, run: Url, folder: Path) -> None:
    lost: list[str] = []

    def confirm() -> None:
        raise Deposed("another one writes there now")

    publisher = Publisher(store, run, folder, ManualClock(autojump=True), confirm, lost.append)
    store.replace(run / "events" / "000001.jsonl", b"of another\n")
    (folder / "events.jsonl").write_text("mine\n")
    publisher.start()
    publisher._thread.join()
    assert lost == ["another one writes there now"]
    with pytest.raises(
        RuntimeFailure, match=rf"^another one writes there now; what could not be uploaded is in {folder}"
    ):
        publisher.finish()


def test_files_of_trackers_are_uploaded_with_the_others(store: ObjectStore, run: Url, folder: Path) -> None:
    for name in ("tensorboard", "logs"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    publisher = Publisher(store, run, folder, ManualClock(autojump=True))
    publisher.upload()
    assert files(store, run) == {"tensorboard/file": b"tensorboard"}
    publisher.finish()
    assert files(store, run) == {"tensorboard/file": b"tensorboard", "logs/file": b"logs"}
