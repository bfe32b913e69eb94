"""Length of a thread's time slices: a thread that computes keeps its core, and the core's caches, for longer at a time.

Linux from 6.12 takes a slice as the request of the thread itself (EEVDF; `sched_runtime` in sched_setattr(2)). It
changes how often threads take turns, not their shares of the processor; a thread with shorter slices that wakes up
does not wait for a longer one to end. Earlier kernels ignore the request.
"""

from __future__ import annotations

import ctypes
import os
import platform

_SET_ATTRIBUTES, _GET_ATTRIBUTES = {
    "x86_64": (314, 315),
    "aarch64": (274, 275),
    "riscv64": (274, 275),
}.get(platform.machine() if platform.system() == "Linux" else "", (0, 0))
"""Numbers of the system calls, which libraries of C have only since glibc 2.41; 0: not known here."""
_CALLING_THREAD = 0


class _Attributes(ctypes.Structure):
    """`struct sched_attr` in its first version, which each kernel accepts."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def request_slice(slice_s: float) -> bool:
    """Request time slices of this length, 0.1 to 100 ms, for the calling thread and those that it starts later.

    Its policy and its niceness stay as they are. Returns whether the kernel has taken it: False for an earlier kernel,
    another system, or a thread that is not scheduled by shares (`SCHED_OTHER`, `SCHED_BATCH`).
    """
    attributes = _attributes()
    if attributes is None or attributes.policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    attributes.runtime_ns = wanted_ns = round(slice_s * 1e9)
    if ctypes.CDLL(None).syscall(_SET_ATTRIBUTES, _CALLING_THREAD, ctypes.byref(attributes), 0):
        return False
    taken = _attributes()
    return taken is not None and bool(taken.runtime_ns == wanted_ns)


def _attributes() -> _Attributes | None:
    """Attributes of the calling thread; None where the system does not say them."""
    if not _GET_ATTRIBUTES:
        return None
    size = ctypes.sizeof(_Attributes)
    found = _Attributes(size=size)
    failed = ctypes.CDLL(None).syscall(_GET_ATTRIBUTES, _CALLING_THREAD, ctypes.byref(found), size, 0)
    return None if failed else found
