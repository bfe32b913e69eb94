"""Launcher that makes a program exit with its parent, and replaces itself by it.

    python -I -S with_parent.py PARENT_PID SIGNAL PROGRAM [ARGUMENT ...]

SIGNAL, a number, is sent to the program when its parent exits.

Run as a file, so that only the standard library is loaded. Setting this here, between two execs, replaces `preexec_fn`,
which runs Python between fork and exec, where a lock that another thread held stays locked for ever.

Linux sends the signal when the THREAD that started this process exits: start it from one that runs as long as the
process does.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def guarded(command: list[str], number: int) -> list[str]:
    """Command line by which a child process of this one runs a command that ends with it, by signal `number`."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *command]


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; see prctl(2).

    Raises
    ------
    OSError
        The kernel refuses it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def end_with_parent(parent: int, number: int) -> None:
    """Request signal `number` at the exit of the parent; exit with a message where that has ended already."""
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit("the parent ended first")


def main() -> None:
    """Request the signal at the parent's exit, check that the parent is still running, and exec the program."""
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
