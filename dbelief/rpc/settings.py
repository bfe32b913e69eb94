"""Process-wide settings of gRPC and the allocator, made by programs before gRPC is imported.

Never made by `import dbelief`: a library has no business changing its host's allocator.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def prepare_process() -> None:
    """Set the allocator and gRPC's switches for bulk transfer. Call it before anything imports grpc.

    * glibc returns large blocks to the kernel at every free, so that each message pays for page faults and zeroing.
      A message has at most 1 MiB: what is smaller than 32 MiB comes from the heap and stays there, up to 64 MiB, for
      the next one. Vectors are larger, and theirs goes back when they do.
    * Threads of gRPC's free what others made: with one arena a block that is free is free for all of them.
    * The event engine adds thread hops per message; without it a unary call takes half the time.
    * gRPC's own log lines (a peer went away) would stand beside our own named ones.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another libc
            pass
        else:
            mallopt(_M_ARENA_MAX, 1)
            mallopt(_M_MMAP_THRESHOLD, 32 << 20)
            mallopt(_M_TRIM_THRESHOLD, 64 << 20)
            mallopt(_M_TOP_PAD, 4 << 20)
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def limit_threads(threads: int) -> None:
    """Bound BLAS and OpenMP threads of this process; call it before NumPy is imported."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
