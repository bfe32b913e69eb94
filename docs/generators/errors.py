"""Reference of the error classes, from `dbelief.errors`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from dbelief import errors

from .tables import code, plain, required, table


def reference() -> str:
    """All error classes, each below its base class, with the exit code of a command that fails with it.

    Raises
    ------
    Undocumented
        A class has no docstring.
    """
    return table(
        ("class", "meaning", "exit code", "derived from"), [_row(error) for error in _below(errors.DbeliefError)]
    )


def _below(error: type[errors.DbeliefError]) -> Iterator[type[errors.DbeliefError]]:
    yield error
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _below(below)


def _row(error: type[errors.DbeliefError]) -> tuple[str, ...]:
    base = code(error.__bases__[0].__name__)
    text = required(inspect.cleandoc(error.__dict__.get("__doc__") or ""), f"class {error.__name__}")
    return code(error.__name__), plain(text), str(error.exit_code), base
