"""Keys given as lists and arrays: those of their texts and numbers, and what is refused in one line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.sparse.given_keys import KeyKind, given_keys
from dbelief.sparse.text_keys import text_keys
from tests.examples import examples

WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@examples(40)
@given(st.lists(st.lists(WHOLE, max_size=4), min_size=1, max_size=5), st.lists(TEXTS, min_size=6, max_size=6))
def test_lists_of_lists_are_bags(whole: list[list[int]], texts: list[str]) -> None:
    """Of any lengths, the last ones too; a NumPy array of texts may be one of them."""
    found, starts = given_keys(whole, "int64")
    assert found.dtype == np.int64
    assert starts is not None
    stops = [*starts[1:].tolist(), found.size]
    assert [found[a:b].tolist() for a, b in zip(starts.tolist(), stops, strict=True)] == whole
    for bags in ([texts[:4], texts[4:]], (tuple(texts[:4]), np.array(texts[4:]))):
        hashed, starts = given_keys(bags, "text")
        np.testing.assert_array_equal(hashed, text_keys(texts))
        assert starts is not None
        assert starts.tolist() == [0, 4]
    for form in (texts, np.array(texts), np.array(texts, object), [text.encode() for text in texts]):
        np.testing.assert_array_equal(given_keys(form, "text").keys, text_keys(texts))
    shaped, none = given_keys(np.array(texts).reshape(2, 3), "text")
    np.testing.assert_array_equal(shaped, text_keys(texts).reshape(2, 3))
    assert none is None


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", "object"])
def test_arrays_keep_their_shape(dtype: str) -> None:
    keys, starts = given_keys(np.arange(6).astype(dtype).reshape(3, 2), "int64")
    assert (keys.dtype.name, keys.tolist(), starts) == ("int64", [[0, 1], [2, 3], [4, 5]], None)


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ([1, 2**63], "int64", "the key 9223372036854775808 is beyond int64: keys are from -2^63 to 2^63 - 1"),
        ([[1], [-(2**63) - 1]], "int64", "the key -9223372036854775809 is beyond int64"),
        (np.array([1, 2**63 + 5], np.uint64), "int64", "the key 9223372036854775813 is beyond int64"),
        (["ann"], "int64", "keys are text ('ann'), must be whole numbers: the table has keys: int64 in the job file"),
        (np.array(["ann"]), "int64", "keys are text ('ann'), must be whole numbers"),
        ([1, 0.5], "int64", "keys are float (0.5), must be whole numbers"),
        (["ann", 5], "text", "keys are int (5), must be texts: the table has keys: text in the job file"),
        (np.arange(3), "text", "keys are int (0), must be texts"),
        (["a", "\ud800"], "text", "the key '\\ud800' has half of a surrogate pair, and no UTF-8"),
        ("ann", "text", "keys are str, must be a tensor, an array or a list"),
        (None, "int64", "keys are NoneType, must be a tensor, an array or a list"),
    ],
)
def test_other_keys_are_refused(keys: Any, kind: KeyKind, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as refused:
        given_keys(keys, kind)
    assert "\n" not in str(refused.value)


def test_no_keys() -> None:
    for kind in ("int64", "text"):
        keys, starts = given_keys([], kind)
        assert (keys.tolist(), keys.dtype.name, starts) == ([], "int64", None)
        keys, starts = given_keys([[], []], kind)
        assert keys.tolist() == []
        assert starts is not None
        assert starts.tolist() == [0, 0]
