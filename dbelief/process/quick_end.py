"""The end of a program without the interpreter's teardown."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def end_after(program: Callable[[], object]) -> NoReturn:
    """Run a program, and end this process with its exit code as soon as it returns or raises `SystemExit`.

    The interpreter would clear all modules, one object after another: 0.2 to 0.5 s with gRPC, numba or matplotlib, in
    which a user waits for the prompt. As in the processes that `multiprocessing` forks, threads that
    are no daemons are awaited, exit handlers run, and streams are flushed. Any other exception is raised.
    """
    try:
        program()
        code = 0
    except SystemExit as end:
        code = _exit_code(end.code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe without a reader
            stream.flush()
    os._exit(code)


def _exit_code(given: object) -> int:
    """The exit code of a `SystemExit`, as the interpreter has it; a text is printed."""
    if given is None:
        return 0
    if isinstance(given, int):
        return given & 0xFF
    print(given, file=sys.stderr)
    return 1
