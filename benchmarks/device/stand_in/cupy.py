"""`import cupy` of a process that has this folder on its path: the stand-in for CuPy among the tests, with one device.

It takes the place of this module while that is imported. A mistake that it has found, raised or not, is the process's
failure at its end.
"""

from __future__ import annotations

import atexit
import os
import sys

from tests.device.standin.cupy import standing_in

MISTAKEN = 70
"""Exit code of a process whose device was used wrongly."""

_entered = standing_in()
_machine = _entered.__enter__()


@atexit.register
def _judge() -> None:
    if _machine.order.mistakes:
        print("\n".join(map(str, _machine.order.mistakes)), file=sys.stderr, flush=True)
        os._exit(MISTAKEN)
