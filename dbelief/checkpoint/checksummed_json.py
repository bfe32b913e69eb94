"""JSON files with damage detection: each has a format number, and a CRC-32 over all its other fields."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dbelief.errors import CorruptSnapshot, SnapshotError
from dbelief.process.atomic_file import write_whole


def write_checksummed(path: Path, form: int, content: Mapping[str, Any]) -> None:
    """Write a file atomically and durably, with a checksum.

    Raises
    ------
    WriteFailed
        It cannot be written; names it.
    """
    write_whole(path, with_checksum(form, content))


def with_checksum(form: int, content: Mapping[str, Any]) -> bytes:
    """Content of such a file."""
    sealed = {"format": form, **content}
    return json.dumps({**sealed, "crc32": checksum(sealed)}).encode()


def read_checksummed(path: Path, form: int) -> dict[str, Any]:
    """Content of a file that `write_checksummed` wrote in this format.

    Raises
    ------
    CorruptSnapshot
        The file is missing or damaged.
    SnapshotError
        It has another format.
    """
    return parse_checksummed(path, path.read_bytes, form)


def parse_checksummed(path: Path | str, read: Callable[[], bytes], form: int) -> dict[str, Any]:
    """As `read_checksummed`, of a file anywhere; `read` returns its bytes, or raises an OSError."""
    try:
        content: dict[str, Any] = json.loads(read())
        if content["format"] != form:
            age = "newer" if content["format"] > form else "older"
            raise SnapshotError(f"{path}: format {content['format']} is {age} than {form}, which this version reads")
        if content.pop("crc32") != checksum(content):
            raise CorruptSnapshot(f"{path}: does not match its checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptSnapshot(f"{path}: cannot be read: {error!r}") from error
    return content


def checksum(content: Mapping[str, Any]) -> int:
    """CRC-32 of a file's content without the checksum itself, independent of whitespace."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
