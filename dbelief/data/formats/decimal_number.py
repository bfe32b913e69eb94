"""A decimal number in text as float32, in compiled loops that read bytes.

A number is parsed from its first 19 digits, as a float64 within two units in the last place. It is left to Python's
`float` if those two units could change the nearest float32, or if it is not a plain decimal number. So every number has
the bits of `np.float32(float(text))`. Importing this module imports numba.
"""

from typing import Any

import numpy as np

from dbelief.arrays.jit import jit

_SPACE, _TAB = 32, 9
_PLUS, _MINUS, _DOT, _ZERO, _NINE = 43, 45, 46, 48, 57
_TENS = 10.0 ** np.arange(23)  # all exact
_DIGITS = 19  # fit into 64 bits
_NEAR = 2.0**-51


@jit
def decimal_number(content: Any, start: Any, stop: Any) -> Any:
    """Return (whether this is a plain decimal number whose nearest float32 is certain, that float32)."""
    while start < stop and content[start] in (_SPACE, _TAB):
        start += 1
    while stop > start and content[stop - 1] in (_SPACE, _TAB):
        stop -= 1
    negative = start < stop and content[start] == _MINUS
    if start < stop and content[start] in (_PLUS, _MINUS):
        start += 1
    digits, exponent, point = 0, 0, False
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
            return False, np.float32(0)
        power = 0
        while start < stop and _ZERO <= content[start] <= _NINE:
            power = 10 * power + content[start] - _ZERO
            start += 1
        exponent += -power if down else power
    if not digits or start != stop or (mantissa and abs(exponent) > 22):
        return False, np.float32(0)
    value = np.float64(mantissa)
    if mantissa:
        value = value * _TENS[exponent] if exponent >= 0 else value / _TENS[-exponent]
    low, high = np.float32(value * (1 - _NEAR)), np.float32(value * (1 + _NEAR))
    return low == high and value < 3e38, -low if negative else low
