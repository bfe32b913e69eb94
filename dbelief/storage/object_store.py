"""A store of objects: reads, writes, conditional creation and uploads, each with retries up to a deadline."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from io import BytesIO
from typing import TypeVar

from dbelief.errors import StorageError, Unavailable
from dbelief.storage.backends import Stat, StoreBackend, open_backend
from dbelief.storage.failures import is_missing, is_taken, named
from dbelief.storage.reader import ObjectReader
from dbelief.storage.upload import Upload
from dbelief.url import Url

log = logging.getLogger(__name__)

R = TypeVar("R")

PATIENCE_S, FIRST_S, BUSY_S = 15.0, 3.0, 9.0
"""How long a request that failed is made again, in seconds; the first one of a process, by which an address that is
wrong is found; and a second time in any case, for a machine may be so busy that the first one is late."""
SILENT_S = 2.0
"""Seconds after which a store that has not answered a first request is named in the log."""
_PAUSE_S = (0.1, 0.3, 1.0, 2.0)


class ObjectStore:
    """Objects by URL. Safe to use from several threads; not across a fork.

    Parameters
    ----------
    backend
        Makes single requests.
    patience_s
        How long a request that failed, and may succeed, is made again, in seconds.
    sleep
        Waits between two attempts, for seconds.

    Notes
    -----
    Every method raises Unavailable where the store does not answer within the time, and StorageError where it refuses;
    the message names the URL and the cause.
    """

    def __init__(
        self,
        backend: StoreBackend,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self._patience_s, self._sleep, self._now = patience_s, sleep, now
        self._answered = False

    def read(self, url: Url) -> bytes:
        """Content of an object.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        return self._attempt(url, lambda: self.backend.read(url))

    def read_range(self, url: Url, start: int, stop: int, tag: str = "") -> bytes:
        """Bytes `start` to `stop` of an object, fewer at its end; raises FileNotFoundError as `read`.

        Where a tag is given, and the object has another one, it was written again: StorageError.
        """
        return self._attempt(url, lambda: self.backend.read(url, start, stop, tag)) if stop > start else b""

    def open(self, url: Url) -> ObjectReader:
        """A file to read from any position, by ranges, as long as the object is the one that is there now.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        size, tag = self.stat(url)
        return ObjectReader(lambda start, stop: self.read_range(url, start, stop, tag), size)

    def stat(self, url: Url) -> Stat:
        """Size and tag of an object; raises FileNotFoundError where there is none."""
        return self._attempt(url, lambda: self.backend.stat(url))

    def exists(self, url: Url) -> bool:
        """Whether there is such an object."""
        try:
            self.stat(url)
        except FileNotFoundError:
            return False
        return True

    def replace(self, url: Url, content: bytes) -> None:
        """Write an object; a reader sees all of it, or what was there before."""
        self._attempt(url, lambda: self.backend.write(url, BytesIO(content), create=False))

    def create(self, url: Url, content: bytes) -> bool:
        """Write an object that does not exist; False where it does, with another content.

        A content should hold a random id: where the answer to a first attempt was lost, the object that a second one
        finds is this one by its content.
        """
        try:
            self._attempt(url, lambda: self.backend.write(url, BytesIO(content), create=True))
        except FileExistsError:
            return self.read(url) == content
        return True

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        """All objects below a prefix, with their sizes and tags."""
        try:
            return self._attempt(prefix, lambda: self.backend.list(prefix))
        except FileNotFoundError:
            return {}

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        """Delete objects in this order; one that does not exist is no error.

        Where the store has folders, those below the prefix `below` that become empty are removed too.
        """
        for url in urls:
            with suppress(FileNotFoundError):
                self._attempt(url, lambda url=url: self.backend.delete([url], below))  # type: ignore[misc]

    @contextmanager
    def upload(self, url: Url) -> Iterator[Upload]:
        """A file to write from its beginning to its end; the object exists at the end of the `with` block.

        Its parts are sent while it is written, a few at a time. Where the block raises, nothing of it remains.
        """
        upload = Upload(
            url,
            lambda: self.backend.begin(url),
            lambda request: self._attempt(url, request),
            lambda: self._size(url),
        )
        try:
            yield upload
            upload.complete()
        except BaseException:
            upload.abort()
            raise

    def _size(self, url: Url) -> int | None:
        try:
            return self.stat(url).size
        except FileNotFoundError:
            return None

    def _attempt(self, url: Url, request: Callable[[], R]) -> R:
        """Make a request until it succeeds, is refused, or the time is over."""
        begun_s, attempts = self._now(), 0
        while True:
            try:
                with nullcontext() if self._answered else self._silence_named(url):
                    found = request()
                self._answered = True
                return found
            except (TypeError, AttributeError, AssertionError):  # an error of this code, or of the library's
                raise
            except Exception as error:
                failure = named(error, url, self.backend.address)
                self._answered |= isinstance(failure, StorageError)
                if is_taken(error):
                    raise FileExistsError(f"{url}: exists") from None
                if is_missing(error):
                    raise FileNotFoundError(f"{url}: does not exist") from None
                if isinstance(failure, StorageError):
                    raise failure from None  # a library's error may show a login
                pause_s = _PAUSE_S[min(attempts, len(_PAUSE_S) - 1)]
                patience_s = self._patience_s if self._answered else FIRST_S if attempts else BUSY_S
                if self._now() + pause_s > begun_s + min(patience_s, self._patience_s):
                    raise Unavailable(f"{failure}, in {attempts + 1} attempt{'s' * (attempts > 0)}") from None
            self._sleep(pause_s)
            attempts += 1

    @contextmanager
    def _silence_named(self, url: Url) -> Iterator[None]:
        """Within the `with` block, log where requests go if no answer comes."""
        address = self.backend.address or "the store"  # before the time counts: S3's library is slow to begin
        timer = threading.Timer(SILENT_S, lambda: log.warning(f"{url}: {address} does not answer yet"))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def connect(url: Url) -> ObjectStore:
    """The store that a URL is in.

    Raises
    ------
    UserError
        Its library is not installed.
    """
    return _of_process(url.scheme, os.getpid())


@lru_cache
def _of_process(scheme: str, process: int) -> ObjectStore:
    """One store for each process: connections do not survive a fork."""
    return ObjectStore(open_backend(scheme))


def disconnect() -> None:
    """Drop this process's stores: the next ones read the environment again."""
    _of_process.cache_clear()
