"""An object that is written from memory as it comes: a few parts of it travel at a time, and no more is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from typing import Any, TypeVar

from dbelief.errors import StorageError, Unavailable
from dbelief.storage.backends import Multipart
from dbelief.url import Url

R = TypeVar("R")

PART = 8 << 20
"""Bytes of a part; the last one may be smaller."""
AT_ONCE = 3
"""Parts that travel at a time. Memory: these, and the one that is being filled."""
MOST_PARTS = 10_000
"""Largest number of parts of an object in S3: later parts are larger, so that this is no limit in practice."""


class Upload:
    """A file that is written from its beginning to its end; see `ObjectStore.upload`.

    Parameters
    ----------
    begin
        Begins the object.
    attempt
        Makes a request, with retries.
    found
        Returns the size of the object that the store has under that name, or None.
    """

    def __init__(
        self,
        url: Url,
        begin: Callable[[], Multipart],
        attempt: Callable[[Callable[[], Any]], Any],
        found: Callable[[], int | None],
    ) -> None:
        self._url, self._begin, self._attempt, self._found = url, begin, attempt, found
        self._part, self._number, self._at = BytesIO(), 1, 0
        self._object: Multipart | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._flying: deque[Future[Any]] = deque()

    def tell(self) -> int:
        """The position, in bytes from the beginning."""
        return self._at

    def seek(self, position: int) -> int:
        """Confirm the position: another is an error, for what was sent cannot be changed."""
        if position != self._at:
            raise ValueError(f"{self._url}: is written in order, at {self._at}, not at {position}")
        return position

    def write(self, data: Any) -> int:
        """Append bytes, which are copied; returns their number. Blocks while `AT_ONCE` parts travel."""
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            done += self._part.write(view[done : done + self._size() - self._part.tell()])
            if self._part.tell() == self._size():
                self._send()
        self._at += len(view)
        return len(view)

    def complete(self) -> None:
        """Send the rest, and make the object."""
        if self._object is None or self._part.tell():
            self._send()
        while self._flying:
            self._flying.popleft().result()
        assert self._object is not None
        try:
            self._attempt(self._object.complete)
        except FileNotFoundError:  # its parts are gone: the answer to an earlier attempt was lost, which had succeeded
            if self._found() != self._at:
                raise StorageError(f"{self._url}: its parts were removed before they were an object") from None
        self._close()

    def abort(self) -> None:
        """Remove what was sent; a part that remains where the store does not answer is of no object."""
        while self._flying:
            with suppress(Exception):
                self._flying.popleft().result()
        if self._object is not None:
            with suppress(StorageError, Unavailable, FileNotFoundError):
                self._attempt(self._object.abort)
        self._close()

    def _size(self) -> int:
        """Size of the present part: the sum of all that S3 allows is 650 GB, and grows from there."""
        return PART << (self._number * 8 // MOST_PARTS)

    def _send(self) -> None:
        if self._object is None:
            self._object = self._attempt(self._begin)
            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload")
        assert self._pool is not None
        if len(self._flying) == AT_ONCE:
            self._flying.popleft().result()
        part, number, target = self._part, self._number, self._object
        self._flying.append(self._pool.submit(self._attempt, lambda: target.send(number, part)))
        self._part, self._number = BytesIO(), number + 1

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
