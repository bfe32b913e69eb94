"""Build backend: setuptools, with archives whose bytes depend on the source alone, and an editable install that takes
precedence over a folder called `dbelief`.

**Archives.** Members are sorted, with one date (`SOURCE_DATE_EPOCH` in seconds, otherwise 1980-01-01, the first date
that a zip can hold), one owner and one mode. So folder, time, user and umask of a build do not show. What setuptools
leaves in the tree, and would read at the next build, is removed before and after. Versions of setuptools and zlib do
show: the same ones give the same bytes.

**Editable install.** A script beside a clone called `dbelief` has that folder on its path. Python treats a folder
without `__init__.py` as a namespace package, and its own finders run before the finder that setuptools appends. So a
second `.pth` file, read after that of setuptools, moves this finder to the front. The finder resolves `dbelief` alone.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (hooks that are not changed)

NAME = "dbelief-first.pth"
LINE = b"import sys; sys.meta_path.sort(key=lambda finder: '__editable___dbelief' not in str(finder.__module__))\n"
FIRST_S = 315_532_800
"""1980-01-01 in seconds since 1970."""
LEFT = ("build", "dbelief.egg-info")
"""Folders of setuptools in the tree: an old one would add files of modules that are gone."""
MODE = 0o644


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source archive; return its name."""
    with _clean_tree():
        name: str = build_meta.build_sdist(sdist_directory, config_settings)
    archive = Path(sdist_directory) / name
    with tarfile.open(archive) as tar:
        files = {member.name: _content(tar, member) for member in tar if member.isfile()}
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(content), _date_s(), MODE
            tar.addfile(member, io.BytesIO(content))
    archive.write_bytes(gzip.compress(held.getvalue(), mtime=_date_s()))
    return name


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel; return its name."""
    with _clean_tree():
        name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory) / name
    _write_wheel(wheel, _members(wheel))
    return name


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the editable wheel with the additional `.pth` file; return its name."""
    with _clean_tree():
        name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory) / name
    held = _members(wheel)
    (record,) = (member for member in held if member.endswith(".dist-info/RECORD"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(LINE).digest()).rstrip(b"=").decode()
    held[NAME] = LINE
    held[record] += f"{NAME},sha256={digest},{len(LINE)}\n".encode()
    _write_wheel(wheel, held)
    return name


@contextmanager
def _clean_tree() -> Iterator[None]:
    """No folder of `LEFT` before and after a build; hooks run in the root of the tree."""
    _remove_left()
    try:
        yield
    finally:
        _remove_left()


def _remove_left() -> None:
    for name in LEFT:
        shutil.rmtree(name, ignore_errors=True)


def _date_s() -> int:
    return max(FIRST_S, int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_S)))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, f"{member.name} is no file"
    return file.read()


def _members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def _write_wheel(wheel: Path, members: Mapping[str, bytes]) -> None:
    """Write a wheel's members, its metadata last, as the format recommends."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in sorted(members, key=lambda name: (".dist-info/" in name, name)):
            member = zipfile.ZipInfo(name, time.gmtime(_date_s())[:6])
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | MODE) << 16
            archive.writestr(member, members[name])
