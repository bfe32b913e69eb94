"""Lines of a user's script in errors: the innermost frame that is neither a library's nor dbelief's."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dbelief.errors import DbeliefError, RuntimeFailure, UserError

_DBELIEF = Path(__file__).parents[1]
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = (*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), str(_DBELIEF))
    return (*(folder + os.sep for folder in folders), "<")


_NOT_THE_USERS = _libraries()


def is_users(file: str) -> bool:
    """Whether a source file is the user's."""
    return not file.startswith(_NOT_THE_USERS)


def calling_line() -> str:
    """`file:line` of the user's innermost frame on the stack; "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def failing_line(error: BaseException) -> str:
    """`file:line` of the user's innermost frame in an error's traceback; "" where there is none.

    A data loader raises errors of its processes again, with their tracebacks as text: these lines come first.
    """
    lines = [f"{file}:{line}" for file, line, _ in _FRAME.findall(str(error)) if is_users(file)]
    lines = lines or [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename)
    ]
    return lines[-1] if lines else ""


def one_line(error: BaseException) -> str:
    """An error of a user's code in one line: where, its class and its message."""
    message = str(error).strip()
    kind = type(error).__name__
    if _FRAME.search(message):  # of another process: class and message follow the last frame of its traceback
        rest = message[list(_FRAME.finditer(message))[-1].end() :].splitlines()
        ended = next((place for place, line in enumerate(rest) if line and not line[0].isspace()), 0)
        kind, _, message = "\n".join(rest[ended:]).partition(": ")
    text = " ".join(message.split())
    where = failing_line(error)
    return f"{where}: {kind}: {text}".removeprefix(": ") if text else f"{where}: {kind}".removeprefix(": ")


def line_of(error: Exception) -> str:
    """An error that ends a script, in one line."""
    return str(error) if isinstance(error, DbeliefError) else one_line(error)


def exit_code_of(error: Exception) -> int:
    """Exit code of a script: another start cannot help where its code is wrong, and may where the machine is."""
    if isinstance(error, DbeliefError):
        return error.exit_code
    transient = isinstance(error, OSError | MemoryError) or "DataLoader worker (pid" in str(error)
    return RuntimeFailure.exit_code if transient else UserError.exit_code


@contextmanager
def located() -> Iterator[None]:
    """Put the script's line before the message of a user's error."""
    try:
        yield
    except UserError as error:
        where = calling_line()
        if not where or where in str(error):
            raise
        raise type(error)(f"{where}: {error}") from None
