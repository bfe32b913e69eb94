"""Keys as a script gives them beside tensors: lists and NumPy arrays, of whole numbers or of texts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from .text_keys import text_keys

KeyKind = Literal["int64", "text"]
"""What the keys of a table are, as its section of the job file says."""
LARGEST_KEY = (1 << 63) - 1
_PLAIN = (str, bytes)


class GivenKeys(NamedTuple):
    """Keys of a table.

    Attributes
    ----------
    keys
        int64, of the shape of an array or a list; of a list of lists all keys in their order, (n,).
    offsets
        (bags,) int64: where each of the lists begins; None where it is no list of lists.
    """

    keys: np.ndarray
    offsets: np.ndarray | None = None


def given_keys(given: object, kind: KeyKind) -> GivenKeys:
    """Keys of whole numbers, or hashes of texts.

    Parameters
    ----------
    given
        An array; or a list, or a list of lists of any lengths, which are bags.

    Raises
    ------
    ValueError
        It is neither, or holds something else than the table's keys, a number beyond int64, or a text without UTF-8.

    Notes
    -----
    Cost: of a text see `text_keys`; of a number in a list 50 ns.
    """
    if isinstance(given, np.ndarray):
        return GivenKeys(_keys_of(given.reshape(-1), kind).reshape(given.shape))
    if not isinstance(given, list | tuple):
        raise ValueError(f"keys are {type(given).__name__}, must be a tensor, an array or a list")
    if not given or not all(isinstance(bag, list | tuple | np.ndarray) for bag in given):
        return GivenKeys(_keys_of(given, kind))
    ends = np.cumsum([len(bag) for bag in given], dtype=np.int64)
    return GivenKeys(_keys_of(list(chain.from_iterable(given)), kind), np.append(0, ends[:-1]))


def _keys_of(given: Sequence[Any] | np.ndarray, kind: KeyKind) -> np.ndarray:
    """(n,) int64 of a list, or of an array of one dimension."""
    if kind == "int64" and isinstance(given, np.ndarray) and given.dtype.kind in "iu":
        if given.dtype == np.uint64 and (beyond := given > LARGEST_KEY).any():
            raise beyond_int64(int(given[beyond][0]))
        return given.astype(np.int64)
    listed = given.tolist() if isinstance(given, np.ndarray) else given
    return _hashed(listed) if kind == "text" else _whole(listed)


def _hashed(given: Sequence[Any]) -> np.ndarray:
    for one in given:
        if not isinstance(one, _PLAIN):
            raise not_of_kind(f"{type(one).__name__} ({one!r:.40})", "text")
    try:
        return text_keys(given)
    except UnicodeEncodeError as error:
        raise ValueError(f"the key {error.object!r:.40} has half of a surrogate pair, and no UTF-8") from None


def _whole(given: Sequence[Any]) -> np.ndarray:
    try:
        return np.fromiter(map(operator.index, given), np.int64, len(given))
    except TypeError:
        wrong = next(one for one in given if not hasattr(one, "__index__"))
        kind = "text" if isinstance(wrong, _PLAIN) else type(wrong).__name__
        raise not_of_kind(f"{kind} ({wrong!r:.40})", "int64") from None
    except OverflowError:
        raise beyond_int64(next(one for one in given if not -LARGEST_KEY - 1 <= one <= LARGEST_KEY)) from None


def not_of_kind(given: str, kind: KeyKind) -> ValueError:
    """Error of keys that are not of the table's kind; `given`: what they are."""
    wanted = "texts" if kind == "text" else "whole numbers"
    return ValueError(f"keys are {given}, must be {wanted}: the table has keys: {kind} in the job file")


def beyond_int64(key: int) -> ValueError:
    """Error of a key that is too large."""
    return ValueError(f"the key {key} is beyond int64: keys are from -2^63 to 2^63 - 1")
