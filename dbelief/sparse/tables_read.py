"""Tables whose rows a script's module reads: a part of the digest that all scripts of a job must have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

_START, _STOP = "tables ", "; "
_MOST = 300
"""Characters of names: a coordinator accepts digests of 512."""


def with_tables(digest: str, names: Collection[str]) -> str:
    """The digest of a module that reads rows of these tables; of no table as it is.

    Where names are many, only their number and a hash of them stand for them.
    """
    listed = ", ".join(sorted(names))
    if len(listed) > _MOST:
        listed = f"{len(names)} tables ({hashlib.sha256(listed.encode()).hexdigest()[:16]})"
    return f"{_START}{listed}{_STOP}{digest}" if names else digest


def tables_read(digest: str) -> str:
    """The tables in a digest, in words."""
    return digest.removeprefix(_START).partition(_STOP)[0] if digest.startswith(_START) else "no table"
