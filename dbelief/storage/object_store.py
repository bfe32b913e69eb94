"""A store of objects: reads, writes, conditional creation and uploads, each with retries up to a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from typing import TypeVar

from dbelief.errors import StorageError, Unavailable
from dbelief.storage.backends import Backend, open_backend
from dbelief.storage.failures import is_missing, is_taken, named
from dbelief.storage.reader import ObjectReader
from dbelief.storage.upload import Upload
from dbelief.url import Url

R = TypeVar("R")

PATIENCE_S = 15.0
"""How long a request that failed is made again, in seconds."""
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
        backend: Backend,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self._patience_s, self._sleep, self._now = patience_s, sleep, now

    def read(self, url: Url) -> bytes:
        """Content of an object.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        return self._attempt(url, lambda: self.backend.read(url))

    def read_range(self, url: Url, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of an object, fewer at its end; raises FileNotFoundError as `read`."""
        return self._attempt(url, lambda: self.backend.read(url, start, stop)) if stop > start else b""

    def open(self, url: Url) -> ObjectReader:
        """A file to read from any position, by ranges; raises FileNotFoundError as `read`."""
        size = self.list(url.parent).get(url)
        if size is None:
            raise FileNotFoundError(f"{url}: does not exist")
        return ObjectReader(lambda start, stop: self.read_range(url, start, stop), size)

    def exists(self, url: Url) -> bool:
        """Whether there is such an object."""
        try:
            self.read(url)
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

    def list(self, prefix: Url) -> Mapping[Url, int]:
        """Sizes in bytes of all objects below a prefix."""
        try:
            return self._attempt(prefix, lambda: self.backend.list(prefix))
        except FileNotFoundError:
            return {}

    def delete(self, urls: Iterable[Url]) -> None:
        """Delete objects in this order; one that does not exist is no error."""
        for url in urls:
            with suppress(FileNotFoundError):
                self._attempt(url, lambda url=url: self.backend.delete([url]))  # type: ignore[misc]

    @contextmanager
    def upload(self, url: Url) -> Iterator[Upload]:
        """A file to write from its beginning to its end; the object exists at the end of the `with` block.

        Its parts are sent while it is written, a few at a time. Where the block raises, nothing of it remains.
        """
        upload = Upload(
            url,
            lambda: self.backend.begin(url),
            lambda request: self._attempt(url, request),
            lambda: self.list(url.parent).get(url),
        )
        try:
            yield upload
            upload.complete()
        except BaseException:
            upload.abort()
            raise

    def _attempt(self, url: Url, request: Callable[[], R]) -> R:
        """Make a request until it succeeds, is refused, or the time is over."""
        until_s, attempts = self._now() + self._patience_s, 0
        while True:
            try:
                return request()
            except (TypeError, AttributeError, AssertionError):  # an error of this code, or of the library's
                raise
            except Exception as error:
                if is_taken(error):
                    raise FileExistsError(f"{url}: exists") from None
                if is_missing(error):
                    raise FileNotFoundError(f"{url}: does not exist") from None
                failure = named(error, url)
                if isinstance(failure, StorageError):
                    raise failure from None  # a library's error may show a login
                pause_s = _PAUSE_S[min(attempts, len(_PAUSE_S) - 1)]
                if self._now() + pause_s > until_s:
                    raise Unavailable(f"{failure}, in {attempts + 1} attempt{'s' * (attempts > 0)}") from None
            self._sleep(pause_s)
            attempts += 1


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
