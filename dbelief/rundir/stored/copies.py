"""Copies of a run in a store: for a process that goes on with it, or reads it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.checkpoint.set_files import LocalFiles
from dbelief.checkpoint.snapshot_set import first_valid
from dbelief.errors import CorruptSnapshot, DataError, DbeliefError, SnapshotError
from dbelief.job import BagsData, load_job
from dbelief.rundir.summary import EARLIER, FILE, has_model
from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url, is_url, parse_url

from .event_pieces import fetch_events
from .publisher import EVENTS

MODEL = "model.safetensors"
_CHUNK = 8 << 20


def fetch_for_resume(store: ObjectStore, run: Url, folder: Path) -> None:
    """Fetch what a coordinator goes on with: the events, how the run ended, and the state of trackers; not the sets."""
    fetch_events(store, run, folder / EVENTS)
    for name in ("job.yaml", FILE, EARLIER, "track.json", "last_pass.json", "reduction.json"):
        _fetch(store, run / name, folder / name)


def parse_run(run: Path | Url | str) -> Path | Url:
    """The folder, or URL, of a run that a user names; raises UserError where it is no URL of a store."""
    return parse_url(str(run)) if is_url(run) else Path(run)


@contextmanager
def local_copy(run: Path | Url, parameters: bool = False, sets: bool = False) -> Iterator[Path]:
    """A folder with the files of a run, which exists within the `with` block; the run's own where it has a folder.

    Parameters
    ----------
    parameters
        With its model; with its newest valid set where it did not end, or its layers read tables. It may be a model
        file then, which is yielded.
    sets
        With its newest valid set in any case.

    Raises
    ------
    DataError
        No run is there.
    Unavailable, StorageError
        The store does not answer, or refuses.
    """
    if isinstance(run, Path):
        yield run
        return
    store = connect(run)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as scratch:
        folder = Path(scratch) / run.name
        if parameters and store.exists(run):
            _fetch(store, run, folder)
            with _named(folder, run):
                yield folder
            return
        folder.mkdir()
        there = store.list(run)
        if run / "job.yaml" not in there:
            raise DataError(f"{run}: is no run: it holds no job.yaml")
        for url in there:
            if url.parent == run and url.name != MODEL:
                _fetch(store, url, folder / url.name)
        fetch_events(store, run, folder / EVENTS)
        if parameters or sets:
            sets |= isinstance(load_job(folder / "job.yaml").data, BagsData)
            whole = run / MODEL in there and has_model(folder)
            if (sets or not whole) and not _fetch_newest_set(ObjectSets(store, run / "snapshots"), folder):
                whole = run / MODEL in there
            if whole:
                _fetch(store, run / MODEL, folder / MODEL)
        with _named(folder, run):
            yield folder


@contextmanager
def _named(folder: Path, run: Url) -> Iterator[None]:
    """Name the run by its URL, not by its copy, in errors."""
    try:
        yield
    except DbeliefError as error:
        error.args = tuple(str(argument).replace(str(folder), run) for argument in error.args)
        raise


def copy_until_exit(run: Url) -> Path:
    """A folder with the small files of a run, which is removed at the end of this process; errors of `local_copy`."""
    stack = ExitStack()
    folder = stack.enter_context(local_copy(run))
    atexit.register(stack.close)
    return folder


def _fetch(store: ObjectStore, url: Url, path: Path) -> None:
    """Fetch an object, where there is one."""
    try:
        with store.open(url) as source, path.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
    except FileNotFoundError:
        path.unlink(missing_ok=True)


def _fetch_newest_set(sets: ObjectSets, folder: Path) -> bool:
    """Fetch the newest valid set into the folder's `snapshots`; False where there is none.

    Raises
    ------
    SnapshotError
        All are corrupt, or of another rule.
    """
    job, complete = load_job(folder / "job.yaml"), sets.complete()
    for set_id in reversed(complete):
        target = folder / "snapshots" / set_id
        target.mkdir(parents=True, exist_ok=True)  # a newer set, which is damaged, may need files of it
        try:
            sets.fetch(set_id, target)
            first_valid([(set_id, LocalFiles(target))], job.name, job.strategy.at_shards.name)
        except (CorruptSnapshot, SnapshotError):
            if set_id == complete[0]:
                raise
            shutil.rmtree(target)
        else:
            return True
    return False
