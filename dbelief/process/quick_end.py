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

    Output that cannot be written, on a full disk, is an error; where its reader has ended, it is none.
    """
    open_streams()
    try:
        program()
        code = 0
    except SystemExit as end:
        code = _exit_code(end.code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(_flush() or code)


def open_streams() -> None:
    """Open standard streams that are closed, as /dev/null: else the files that are opened next take their places."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _flush() -> int:
    """Flush the streams; the exit code of a failure, 0 for none."""
    code = 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        code = 1
        with suppress(OSError, ValueError):
            sys.stderr.write(f"Error: standard output cannot be written: {getattr(error, 'strerror', error)}\n")
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


def _exit_code(given: object) -> int:
    """The exit code of a `SystemExit`, as the interpreter has it; a text is printed."""
    if given is None:
        return 0
    if isinstance(given, int):
        return given & 0xFF
    print(given, file=sys.stderr)
    return 1
