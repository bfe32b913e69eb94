"""The import of matplotlib, which this package's plots need for figures alone: they are written, and never shown."""

from __future__ import annotations

import os
import sys


def import_matplotlib() -> None:
    """Import matplotlib, whatever `MPLBACKEND` says: it fails where that names a backend that is not installed here.

    A notebook sets it for all commands that are run in its cells.
    """
    if "matplotlib" in sys.modules:
        return
    shown = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib  # noqa: F401
    finally:
        if shown is not None:
            os.environ["MPLBACKEND"] = shown
