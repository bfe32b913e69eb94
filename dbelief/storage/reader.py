"""A file over ranges of an object, which are read in blocks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

BLOCK = 8 << 20
"""Bytes of one request."""


class ObjectReader(io.RawIOBase):
    """An object as a file, to read at any position. Reading on is one request for each block; one block is in memory.

    Parameters
    ----------
    read
        Returns the bytes from one position to another.
    size
        Of the object in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self._at = self._start = 0
        self._block = b""

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether its position can be changed: yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position; returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as there are room for, fewer at the end only; returns their number."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._at < self._size:
            inside = self._at - self._start
            if not 0 <= inside < len(self._block):
                stop = min(self._size, self._at + BLOCK)
                self._start, self._block, inside = self._at, self._read(self._at, stop), 0
                if not self._block:
                    break  # the object is shorter by now
            count = min(len(self._block) - inside, len(view) - done)
            view[done : done + count] = self._block[inside : inside + count]
            done += count
            self._at += count
        return done
