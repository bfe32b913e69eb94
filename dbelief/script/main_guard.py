"""Processes that run the script again.

Under the start methods spawn and forkserver (Python 3.14's), each process of a data loader imports the script, to find
its classes. What is not below `if __name__ == "__main__":` runs again, and would join as a further replica.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from dbelief.errors import UserError

_WAY_OUT = (
    'runs the script again: put what trains, from dbelief.join() on, below `if __name__ == "__main__":`, and leave '
    "classes and functions above it"
)
_joined = 0  # the process that has joined


def check_first_run() -> None:
    """Refuse to join where the script runs again, or in a process that was forked by one that has joined.

    Raises
    ------
    UserError
        See above; has the way out.
    """
    global _joined
    if any(frame.f_globals.get("__name__") == "__mp_main__" for frame in _modules()):
        raise UserError(f"dbelief.join: a process that multiprocessing started {_WAY_OUT}")
    if _joined not in (0, os.getpid()):
        raise UserError(f"dbelief.join: this process was forked by process {_joined}, which has joined: join in one")
    _joined = os.getpid()


def unguarded_line() -> int:
    """Line of the script that is running, if each import of the script would run it too; 0 where none would."""
    for frame in _modules():
        if frame.f_globals.get("__name__") == "__main__":
            return 0 if _is_guarded(frame.f_code.co_filename, frame.f_lineno) else frame.f_lineno
    return 0


def check_start_method(context: Any, line: int) -> None:
    """Check that a data loader's processes do not run the script again.

    Parameters
    ----------
    context
        The loader's `multiprocessing_context`; None: Python's usual one.
    line
        See `unguarded_line`.

    Raises
    ------
    UserError
        They would; has the line, and the way out.
    """
    method = (context or multiprocessing).get_start_method()
    if line and method != "fork":
        raise UserError(
            f"line {line} of the script is run by each import of it, and a loader's process ({method}) {_WAY_OUT}"
        )


def _modules() -> Iterator[FrameType]:
    """Frames of modules that are being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame
        frame = frame.f_back


def _is_guarded(file: str, line: int) -> bool:
    """Whether a line is inside an `if` about `__name__`; so it is where the file cannot be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    around = (node for node in ast.walk(tree) if isinstance(node, ast.If) and node.lineno <= line <= _end(node))
    tests = (part for node in around for part in ast.walk(node.test))
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in tests)


def _end(node: ast.If) -> int:
    return node.end_lineno or node.lineno
