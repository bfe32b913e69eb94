"""An object of a user's Python file: it is run once, and an error in it names its line."""

from __future__ import annotations

import difflib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dbelief.errors import ModelError


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs exactly these bytes of a user's file: reading the path again could give others."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._file, self._source = path, source

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes; nothing is cached."""
        try:
            code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            cause = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ModelError(f"{self._file}{line}: not Python ({cause})") from error
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the file; its own errors become a `ModelError` with their line."""
        code = self.get_code(module.__name__)
        folder = str(self._file.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)  # for modules beside the file; last, so that none of them replaces a library
        try:
            exec(code, module.__dict__)
        except (Exception, SystemExit) as error:
            raise raised(self._file, "importing it", error) from error


class _Files(importlib.abc.MetaPathFinder):
    """Users' files as modules of the import system, which has a lock for each module, and detects their deadlocks.

    A name stands for a path and its bytes, so that it is the same in every process.
    """

    def __init__(self) -> None:
        self._loaders: dict[str, _Loader] = {}

    def imported(self, path: Path, source: bytes) -> ModuleType:
        """The module of a file; it is run unless that was done before."""
        name = f"_dbelief_model_{hashlib.sha256(os.fsencode(path) + b'/' + source).hexdigest()[:16]}"
        self._loaders.setdefault(name, _Loader(name, path, source))
        while True:
            # The statement's function: it gives a module that runs as far as it is where files load each other in two
            # threads, and `importlib.import_module` raises.
            module = __import__(name)
            if sys.modules.get(name) is module:
                return module
            # Another thread ran it, and failed: what this one waited for is half a module.

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        loader = self._loaders.get(fullname)
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader) if loader else None


_FILES = _Files()
sys.meta_path.append(_FILES)


def load_object(path: Path, name: str) -> tuple[Any, str]:
    """Load what a name stands for in a user's Python file.

    The file is run once in a process, as a module of a private name, by whichever thread asks first: others wait, as
    they do for an import. One whose run failed is run again. Its folder is added to the end of the import path; only
    this one file is hashed. Nothing is written beside it.

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
    module = _FILES.imported(path, source)
    if not hasattr(module, name):
        public = [own for own in vars(module) if not own.startswith("_")]
        raise ModelError(f"{path}: {unknown(name, public)}")
    return getattr(module, name), sha256


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
