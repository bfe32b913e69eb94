"""A store in memory whose requests can be made to fail, and is the same for all that open it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO

from dbelief.storage.backends import MemoryBackend, Multipart, Stat
from dbelief.url import Url


class FaultyMemory(MemoryBackend):
    """Memory; `error` is raised by every request while there is one. `requests` counts the writes of each object."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.requests: dict[Url, int] = {}

    def _enter(self) -> None:
        if self.error is not None:
            raise self.error

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        self._enter()
        return super().read(url, start, stop, tag)

    def stat(self, url: Url) -> Stat:
        self._enter()
        return super().stat(url)

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        self._enter()
        self.requests[url] = self.requests.get(url, 0) + 1
        super().write(url, content, create)

    def begin(self, url: Url) -> Multipart:
        self._enter()
        return super().begin(url)

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        self._enter()
        return super().list(prefix)

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        self._enter()
        super().delete(urls, below)

    def inner(self, url: Url) -> bytes:
        """An object's content, whatever fails."""
        return super().read(url)
