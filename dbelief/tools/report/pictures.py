"""Plots of a run, drawn from the files of its folder; also possible while it runs.

Drawing code is imported when a plot is drawn: a coordinator imports this module at its start, and matplotlib, half of
all that it would load, only after its job is over.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

from dbelief.errors import DataError, WriteFailed
from dbelief.rundir.events import read_events
from dbelief.rundir.folder import LAST_PASS


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


def load_drawing_code() -> None:
    """Import what `draw_pictures` imports. Cost: half a second."""
    import_matplotlib()
    from . import curves, pass_timeline  # noqa: F401
    from .plot_style import new_figure

    # matplotlib imports its renderer and writer, and loads a font, when a figure is saved.
    new_figure("loading", height=1.0, layout=None).savefig(io.BytesIO(), format="png")


def draw_pictures(run: Path, output: Path, title: str) -> list[Path]:
    """Draw the plots that the run has data for: curves.png, and last_pass.png of a batch method with a complete pass.

    Parameters
    ----------
    run
        The run folder.
    output
        The folder of the plots, created if missing.
    title
        Title above each plot.

    Raises
    ------
    DataError
        Where the run's files cannot be read.
    WriteFailed
        Where the plots cannot be written.
    """
    import_matplotlib()
    from .curves import draw_curves
    from .pass_timeline import draw_pass

    try:
        output.mkdir(parents=True, exist_ok=True)
        drawn = [output / "curves.png"]
        draw_curves(read_events(run / "events.jsonl"), drawn[0], title)
        if (run / LAST_PASS).exists():
            drawn.append(output / "last_pass.png")
            draw_pass(read_fields(run / LAST_PASS, "runs", "pass"), drawn[-1], title)
    except OSError as error:
        raise WriteFailed(f"{error.filename or output}: the pictures cannot be written: {error.strerror}") from error
    return drawn


def read_fields(path: Path, needed: str, what: str) -> dict[str, object]:
    """Fields of a JSON file that has a field `needed`.

    Raises
    ------
    DataError
        The file cannot be read, or is none; `what`: what it should be.
    """
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if not isinstance(fields, dict) or needed not in fields:
        raise DataError(f"{path}: is no {what}")
    return fields
