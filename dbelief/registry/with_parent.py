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


def main() -> None:
    """Request the signal at the parent's exit, check that the parent is still running, and exec the program."""
    parent, number, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent ended first")
    os.execv(program, sys.argv[3:])


if __name__ == "__main__":
    main()
