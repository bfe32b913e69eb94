"""The error of a Python program, from the traceback at the end of its log."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

from dbelief import errors
from dbelief.script.user_code import is_users

_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)')
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?:: .*)?")
_LASTING = (
    *(ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError),
    *(AssertionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, errors.UserError),
)
"""Errors that a further start does not change."""


def error_in(lines: Sequence[str]) -> tuple[str, bool]:
    """The error of a Python traceback at the end of some lines: `FILE:LINE: ERROR`, the user's line; "" for none.

    The second value: whether it is one that lasts.
    """
    frames = [(number, found) for number, line in enumerate(lines) if (found := _FRAME.match(line))]
    if not frames:
        return "", False
    below = [line for line in lines[frames[-1][0] + 1 :] if line[:1].strip()]
    found = _ERROR.fullmatch(below[0]) if below else None
    if found is None:
        return "", False
    own = [frame for _, frame in frames if is_users(frame[1])] or [frames[-1][1]]
    name = found[1].rpartition(".")[2]
    kind = getattr(errors, name, None) if found[1].startswith("dbelief.errors.") else getattr(builtins, found[1], None)
    lasts = isinstance(kind, type) and issubclass(kind, _LASTING)
    return f"{own[-1][1]}:{own[-1][2]}: {below[0]}", lasts
