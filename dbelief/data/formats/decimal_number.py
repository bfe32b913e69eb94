"""A decimal number in text as float64, in compiled loops that read bytes.

The first 19 digits are multiplied by a power of ten in twice the digits of a float64, and rounded once. A number is
left to Python's `float` if the digits behind those could change the result, if it is too near the middle of two
float64, or if it is not a plain decimal number. So every number has the bits of `float(text)`. Importing this module
imports numba.
"""

from typing import Any

import numpy as np

from dbelief.arrays.jit import jit

LARGEST = 3e38
"""Numbers from here on are left to the caller: float32 ends soon after."""

_SPACE, _TAB = 32, 9
_PLUS, _MINUS, _DOT, _ZERO, _NINE = 43, 45, 46, 48, 57
_TENS = 10.0 ** np.arange(23)  # all exact
_DIGITS = 19  # fit into 64 bits
_EXACT = 1 << 53  # whole numbers up to here are float64
_HALF = np.float64(1 << 32)
_SPLIT = 134217729.0  # 2^27 + 1: cuts a float64 into two halves, whose products are exact (Dekker 1971)
_NEAR = 2.0**-50  # of the distance between two float64: the middle is as good as reached


@jit
def decimal_number(content: Any, start: Any, stop: Any) -> Any:
    """Return (whether this is a plain decimal number whose float64 is certain, and below `LARGEST`; that float64)."""
    while start < stop and content[start] in (_SPACE, _TAB):
        start += 1
    while stop > start and content[stop - 1] in (_SPACE, _TAB):
        stop -= 1
    negative = start < stop and content[start] == _MINUS
    if start < stop and content[start] in (_PLUS, _MINUS):
        start += 1
    digits, exponent, point, cut = 0, 0, False, False
    significant: Any = 0
    mantissa = np.uint64(0)
    while start < stop:
        byte = content[start]
        if _ZERO <= byte <= _NINE:
            digits += 1
            if significant < _DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
                significant += mantissa > 0
                exponent -= point
            else:
                exponent += not point
                cut |= byte != _ZERO
        elif byte == _DOT and not point:
            point = True
        else:
            break
        start += 1
    if digits and start + 1 < stop and content[start] in (69, 101):  # E, e
        start += 1
        down = content[start] == _MINUS
        start += content[start] in (_PLUS, _MINUS)
        if start == stop or stop - start > 4:
            return False, 0.0
        power = 0
        while start < stop and _ZERO <= content[start] <= _NINE:
            power = 10 * power + content[start] - _ZERO
            start += 1
        exponent += -power if down else power
    if not digits or start != stop or (mantissa and abs(exponent) > 22):
        return False, 0.0
    if not mantissa:
        return True, -0.0 if negative else 0.0
    certain, value = _scaled(mantissa, exponent)
    if cut and certain:  # the number lies between these two
        certain, above = _scaled(mantissa + np.uint64(1), exponent)
        certain = certain and value == above
    return certain and value < LARGEST, -value if negative else value


@jit
def _scaled(mantissa: Any, exponent: Any) -> Any:
    """Return (whether it is certain, mantissa * 10^exponent as the nearest float64)."""
    if mantissa <= np.uint64(_EXACT):  # one rounding (Clinger 1990)
        value = np.float64(np.int64(mantissa))
        return True, value * _TENS[exponent] if exponent >= 0 else value / _TENS[-exponent]
    high = np.float64(mantissa >> np.uint64(32)) * _HALF
    low = np.float64(mantissa & np.uint64(0xFFFFFFFF))
    high, low = high + low, low - ((high + low) - high)
    if exponent > 0:
        power = _TENS[exponent]
        value = high * power
        rest = _lost(high, power, value) + low * power
    elif exponent < 0:
        power = _TENS[-exponent]
        value = high / power
        back = value * power
        rest = ((high - back) - _lost(value, power, back) + low) / power
    else:
        value, rest = high, low
    rounded = value + rest
    rest = rest - (rounded - value)
    gap = np.spacing(rounded)
    # Below a power of two numbers are half as far apart; there the middle is a quarter.
    sure = abs(abs(rest) - 0.5 * gap) > _NEAR * gap and abs(abs(rest) - 0.25 * gap) > _NEAR * gap
    return sure, rounded


@jit
def _lost(one: Any, other: Any, product: Any) -> Any:
    """What rounding took from a product, exactly."""
    part = _SPLIT * one
    one_high = part - (part - one)
    one_low = one - one_high
    part = _SPLIT * other
    other_high = part - (part - other)
    other_low = other - other_high
    return ((one_high * other_high - product) + one_high * other_low + one_low * other_high) + one_low * other_low
