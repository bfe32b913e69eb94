"""Uploads a run's files from the private folder of its coordinator, while the run goes on."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from dbelief.errors import Deposed, RuntimeFailure, StorageError, Unavailable
from dbelief.process.atomic_file import write_whole
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.rundir.summary import EARLIER, FILE
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url

from .event_pieces import EventPieces

log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
PASSING = ("address", FILE, EARLIER)
"""Files that are removed in the course of a run, there as here."""
EVERY_S = 2.0
"""Time between two looks for changes, in seconds: what a coordinator that is killed loses of its events."""
FINISH_S = 60.0
"""How long the end of a run waits for a store that is away, in seconds."""
_LARGE = 1 << 20
_ALWAYS, _FOLDERS = ("tensorboard",), ("logs", "record")
_SENT = ".uploaded.json"
"""File in the folder with the stamps of what was uploaded from it: its launcher does not upload a model again."""

Stamp = list[int]


class Publisher:
    """Uploads files of one folder to one prefix.

    Parameters
    ----------
    run
        The run's prefix.
    confirm
        Raises Deposed where another process writes there by now.
    lost
        Called with the reason then.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: Url,
        folder: Path,
        clock: Clock,
        confirm: Callable[[], None] = lambda: None,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._run, self._folder, self._clock, self._lost = store, run, folder, clock, lost
        self._events = EventPieces(store, run, folder / EVENTS, confirm)
        self._there = {url[len(run) + 1 :] for url in store.list(run)}
        self._record = folder / _SENT
        self._sent: dict[str, Stamp] = _read(self._record)
        self._failing = False
        self._lock = runtime.lock()
        self._ended = runtime.event()

    def start(self) -> None:
        """Look for changes until `finish`."""
        self._thread = runtime.spawn(self._look_on, "publisher")

    def stop(self) -> None:
        """End the thread; nothing more is uploaded by it."""
        self._ended.set()
        self._thread.join()

    def finish(self) -> None:
        """Upload all that is not uploaded yet, and wait for a store that is away.

        Raises
        ------
        RuntimeFailure
            It did not come back in time, or refuses; the folder has what is missing.
        """
        until_s, never = self._clock.now() + FINISH_S, runtime.event()
        while True:
            try:
                self.upload(also=_FOLDERS)
                return
            except Unavailable as error:
                failure: Exception = error
            except (Deposed, StorageError) as error:
                raise RuntimeFailure(f"{error}; what could not be uploaded is in {self._folder}") from None
            if self._clock.now() >= until_s:
                raise RuntimeFailure(f"{failure}; what could not be uploaded is in {self._folder}")
            self._clock.wait(never, EVERY_S)

    def upload(self, also: tuple[str, ...] = ()) -> None:
        """Upload what has changed; `also`: and what these folders hold. The summary is last: it says that all is there.

        Raises
        ------
        Unavailable, StorageError
            The store does not take it.
        Deposed
            Another coordinator writes there.
        """
        with self._lock:
            self._events.upload()
            files = [path for path in self._folder.glob("*") if path.name != EVENTS]
            files += [path for folder in (*_ALWAYS, *also) for path in (self._folder / folder).rglob("*")]
            for path in sorted(files, key=lambda path: (path.name == FILE, path)):
                if not path.name.startswith(".") and path.suffix != ".lock" and path.is_file():
                    self._upload_changed(path)
            for name in PASSING:
                if name in self._there and not (self._folder / name).exists():
                    self._store.delete([self._run / name])
                    self._there.discard(name)

    def _upload_changed(self, path: Path) -> None:
        try:
            name, stamp = path.relative_to(self._folder).as_posix(), [path.stat().st_mtime_ns, path.stat().st_size]
            if self._sent.get(name) == stamp:
                return
            if stamp[1] < _LARGE:
                self._store.replace(self._run / name, path.read_bytes())
            else:
                with path.open("rb") as file, self._store.upload(self._run / name) as upload:
                    shutil.copyfileobj(file, upload, _LARGE)
        except FileNotFoundError:  # it was removed meanwhile
            return
        self._sent[name] = stamp
        self._there.add(name)
        write_whole(self._record, json.dumps(self._sent).encode())

    def look(self) -> bool:
        """Upload what has changed, and log where that begins to fail, or to succeed; False where another one writes."""
        try:
            self.upload()
        except Deposed as error:
            self._lost(str(error))
            return False
        except (Unavailable, StorageError, OSError) as error:
            if not self._failing:
                log.warning(f"files of the run cannot be uploaded, and are later: {error}")
            self._failing = True
        else:
            if self._failing:
                log.info(f"files of the run are uploaded again, to {self._run}")
            self._failing = False
        return True

    def _look_on(self) -> None:
        while not self._clock.wait(self._ended, EVERY_S) and self.look():
            pass


def _read(record: Path) -> dict[str, Stamp]:
    """Stamps of an earlier publisher of the folder."""
    try:
        found: dict[str, Stamp] = json.loads(record.read_text())
    except FileNotFoundError:
        return {}
    return found
