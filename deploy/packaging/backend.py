"""Build backend: setuptools, with an editable install that takes precedence over a folder called `dbelief`.

A script beside a clone called `dbelief` has that folder on its path. Python treats a folder without `__init__.py` as a
namespace package, and its own finders run before the finder that setuptools appends. So a second `.pth` file, read
after that of setuptools, moves this finder to the front. The finder resolves `dbelief` alone.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (hooks that are not changed)

NAME = "dbelief-first.pth"
LINE = b"import sys; sys.meta_path.sort(key=lambda finder: '__editable___dbelief' not in str(finder.__module__))\n"


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the editable wheel with the additional `.pth` file; return its name."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory) / name
    with zipfile.ZipFile(wheel) as archive:
        held = {member: archive.read(member) for member in archive.namelist()}
    (record,) = (member for member in held if member.endswith(".dist-info/RECORD"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(LINE).digest()).rstrip(b"=").decode()
    held[NAME] = LINE
    held[record] += f"{NAME},sha256={digest},{len(LINE)}\n".encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in held.items():
            archive.writestr(member, content)
    return name
