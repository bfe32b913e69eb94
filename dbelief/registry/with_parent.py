"""Become another program that ends with its parent.

    python -I -S with_parent.py PARENT_PID SIGNAL PROGRAM [ARGUMENT ...]

SIGNAL, a number, is what the program gets when its parent dies.

Run as a file, so that nothing but the standard library is loaded. Setting this here, between two execs, is
what `preexec_fn` would be for; that one runs Python between fork and exec, where a lock that another thread
held stays locked for ever.

Linux sends the signal when the THREAD that started this process ends: start it from one that lives as long
as the process does.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal at the parent's death, make sure that it still lives, and become the program."""
    parent, number, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent ended first")
    os.execv(program, sys.argv[3:])


if __name__ == "__main__":
    main()
