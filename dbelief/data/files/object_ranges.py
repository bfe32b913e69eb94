"""Parts of an object of data, which must stay as it was when the job began."""

from __future__ import annotations

import io

from dbelief.errors import DataError
from dbelief.storage.backends import Stat
from dbelief.storage.failures import ObjectChanged
from dbelief.storage.object_store import connect
from dbelief.storage.reader import ObjectReader
from dbelief.url import Url

_BUFFER = 1 << 20


def read_range(url: Url, start: int, stop: int, tag: str) -> bytes:
    """Bytes `start` to `stop` of the object with a tag.

    Raises
    ------
    DataError
        It was written again, or removed.
    StorageError, Unavailable
        The store refuses it, or does not answer.
    """
    try:
        found = connect(url).read_range(url, start, stop, tag)
    except FileNotFoundError:
        raise DataError(f"{url}: was removed after the job began") from None
    except ObjectChanged:
        raise DataError(f"{url}: was written again after the job began") from None
    if len(found) != stop - start:
        raise DataError(f"{url}: ends after {start + len(found):,} bytes: was written again after the job began")
    return found


def open_ranges(url: Url, found: Stat) -> io.BufferedReader:
    """The object as a file to read at any position; what is read raises as `read_range`."""
    reader = ObjectReader(lambda start, stop: read_range(url, start, stop, found.tag), found.size)
    return io.BufferedReader(reader, _BUFFER)
