"""Objects that hold each other, which Python frees only when it looks for them.

gRPC leaves some for each connection that breaks, and with them messages of up to 1 MiB. Python looks through all that
there is when there are some 70,000 objects more, and a quarter again: by then thousands of workers have come and gone.
So a program that serves for long looks itself when a member has gone for good. That takes a millisecond where what was
loaded once, and stays, is left out; else, with numba and its compiler loaded, a tenth of a second.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze() -> None:
    """From now on do not look through what is there now; to be called before there is anything that may go again."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Free what holds only each other. Cost: one look at all objects that were made since the program was loaded."""
    gc.collect()
