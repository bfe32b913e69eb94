"""Powers with the same bits on every machine.

C's `pow` is allowed an error in its last bit, which depends on the C library and on the processor. What goes into
parameters on several machines at once is computed here instead, in decimal integers, and rounded once.
"""

from __future__ import annotations

import functools
import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction

_CONTEXT = Context(prec=24, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_EXACT = 64
"""Whole exponents up to which a power is exact before it is rounded: some microseconds."""


@functools.lru_cache(maxsize=4096)  # segments of a shard, and ranges that missed steps, ask for the same ones in turn
def power(base: float, exponent: float) -> float:
    """`base ** exponent` of a base from 0 up, as a float64; infinity where that is too large for one.

    Cost: microseconds with an exponent that is a multiple of 1/2, a tenth of a millisecond with another.
    """
    if exponent == 0:
        return 1.0  # of 0 too
    if exponent % 1 == 0.5:
        return math.sqrt(power(base, 2 * exponent))
    if exponent == int(exponent) and base <= 4 and exponent <= _EXACT:
        # Of a short base it may lie in the middle between two float64, which a decimal of limited length misses.
        return float(Fraction(base) ** int(exponent))
    return float(_CONTEXT.power(Decimal(base), Decimal(exponent)))
