"""Process-wide settings of gRPC and the allocator, made by programs before gRPC is imported.

Never made by `import dbelief`: a library has no business changing its host's allocator.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def prepare_process() -> None:
    """Set the allocator and gRPC's switches for bulk transfer. Call it before anything imports grpc.

    * glibc returns large blocks to the kernel at every free, so that each message pays for page faults and zeroing;
      high thresholds and one arena keep the blocks. Resident memory then stays at its high-water mark.
    * The event engine adds thread hops per message; without it a unary call takes half the time.
    * gRPC's own log lines (a peer went away) would stand beside our own named ones.
    * The first process of a container is deaf to a signal that it has no handler for; a command is to end by SIGTERM
      there as anywhere.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another libc
            pass
        else:
            mallopt(_M_ARENA_MAX, 1)
            mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
            mallopt(_M_TOP_PAD, 16 << 20)
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def limit_threads(threads: int) -> None:
    """Bound BLAS and OpenMP threads of this process; call it before NumPy is imported."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
