"""An object of a user's Python file: it is run once, and an error in it names its line."""

from __future__ import annotations

import difflib
import hashlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from dbelief.errors import ModelError


def load_object(path: Path, name: str) -> tuple[Any, str]:
    """Load what a name stands for in a user's Python file.

    The file is run once in a process, as a module of a private name. Its folder is added to the end of the import path;
    only this one file is hashed. Nothing is written beside it.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Of an object in it.

    Returns
    -------
    found : object
    sha256 : str
        Of the bytes that were run, in hexadecimal: two processes with the same one run the same source.

    Raises
    ------
    ModelError
        The file cannot be read, compiled or run, or has no such name; the message names the file, and the line where
        there is one.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    sha256 = hashlib.sha256(source).hexdigest()
    module = _run(path, source, sha256)
    if not hasattr(module, name):
        public = [own for own in vars(module) if not own.startswith("_")]
        raise ModelError(f"{path}: {unknown(name, public)}")
    return getattr(module, name), sha256


def _run(path: Path, source: bytes, sha256: str) -> ModuleType:
    """Run exactly these bytes as a module (importing the path again could read others), unless that was done before."""
    private = f"_dbelief_model_{sha256[:16]}"
    held = sys.modules.get(private)
    if held is not None and held.__file__ == str(path):
        return held
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        cause = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ModelError(f"{path}{line}: not Python ({cause})") from error
    loader = importlib.machinery.SourceFileLoader(private, str(path))
    spec = importlib.util.spec_from_file_location(private, path, loader=loader)
    assert spec is not None, f"a loader was given, yet no spec for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module  # dataclasses and typing look a class's module up there
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # for modules beside the file; last, so that none of them replaces a library
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[private]
        raise raised(path, "importing it", error) from error
    return module


def raised(path: Path, what: str, error: BaseException) -> ModelError:
    """Name the last line of the user's file on the way to an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = f", line {lines[-1]}" if lines else ""
    cause = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        cause += "; pip install 'dbelief[torch]'"
    return ModelError(f"{path}{line}: {what} raised {type(error).__name__}{': ' + cause if cause else ''}")


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, which ones are, and the nearest."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return f"{name!r} is not known{hint} (there is: {', '.join(names) or 'none'})"
