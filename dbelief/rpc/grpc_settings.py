"""Process-wide settings of gRPC and the allocator, made by programs before gRPC is imported.

`import dbelief` never makes them: a library must not change its host's allocator.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def prepare_process() -> None:
    """Set the allocator and gRPC's switches for bulk transfer. Call it before anything imports grpc.

    * The event engine adds thread hops per message; without it a unary call takes half the time.
    * gRPC's own log lines (a peer disconnected) would duplicate our own.
    * The first process of a container ignores a signal that it has no handler for; a command must exit on SIGTERM there
      too.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    keep_blocks()
    set_switches()


def set_switches() -> None:
    """Set gRPC's switches alone, in a process that is not dbelief's own; before anything imports grpc.

    Its fork handlers are off: processes that a data loader forks use no gRPC.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def keep_blocks() -> None:
    """Let the allocator keep large blocks; without glibc this does nothing.

    * glibc returns large blocks to the kernel at every free, so that each message pays for page faults and zeroing.
      A message has at most 1 MiB: blocks below 32 MiB come from the heap and stay there, up to 64 MiB, for the next
      message. Vectors are larger, and their memory is returned when they are freed.
    * gRPC's threads free memory of other threads: with one arena a free block is available to all of them.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another libc
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    mallopt(_M_TOP_PAD, 4 << 20)


def limit_threads(threads: int) -> None:
    """Limit the BLAS and OpenMP threads of this process, and of those that it starts."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "numpy" in sys.modules:  # it has read them already, in the process that this one was forked from
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
