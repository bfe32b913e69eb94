"""Keys of text: published hashes, and another implementation of XXH64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.sparse import text_keys as module
from dbelief.sparse.text_keys import text_keys

ALL = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PUBLISHED = {
    "": 0xEF46DB3751D8E999,
    "a": 0xD24EC4F1A98C6E5B,
    "abc": 0x44BC2CF5AD770999,
    "Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


def turned(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & ALL


def lane(total: int, word: int) -> int:
    return turned((total + word * P2) & ALL, 31) * P1 & ALL


def xxh64(content: bytes) -> int:
    """From the specification, on Python's own whole numbers."""
    found, size, at = P5, len(content), len(content) // 32 * 32
    if at:
        lanes = [P1 + P2 & ALL, P2, 0, -P1 & ALL]
        for words in np.frombuffer(content[:at], "<u8").reshape(-1, 4).tolist():
            lanes = [lane(total, word) for total, word in zip(lanes, words, strict=True)]
        found = sum(turned(total, bits) for total, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & ALL
        for total in lanes:
            found = ((found ^ lane(0, total)) * P1 + P4) & ALL
    found = found + size & ALL
    while at + 8 <= size:
        found = turned(found ^ lane(0, int.from_bytes(content[at : at + 8], "little")), 27) * P1 + P4 & ALL
        at += 8
    if at + 4 <= size:
        found = turned(found ^ (int.from_bytes(content[at : at + 4], "little") * P1 & ALL), 23) * P2 + P3 & ALL
        at += 4
    for byte in content[at:]:
        found = turned(found ^ (byte * P5 & ALL), 11) * P1 & ALL
    found = (found ^ found >> 33) * P2 & ALL
    found = (found ^ found >> 29) * P3 & ALL
    return found ^ found >> 32


def test_keys_are_the_published_hashes() -> None:
    assert text_keys(list(PUBLISHED)).view(np.uint64).tolist() == list(PUBLISHED.values())


def test_the_table_of_the_module_holds() -> None:
    rows = re.findall(r"^    (\S.*?) {2,}(-?\d{10,})$", module.__doc__ or "", re.MULTILINE)
    assert len(rows) == 6
    texts = [text.replace("(the empty one)", "") for text, _ in rows]
    assert text_keys(texts).tolist() == [int(key) for _, key in rows]


@given(st.lists(st.one_of(st.text(), st.binary(max_size=200)), max_size=20))
def test_keys_are_those_of_the_specification(texts: list[str | bytes]) -> None:
    found = text_keys(texts)
    assert found.dtype == np.int64
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    assert found.view(np.uint64).tolist() == [xxh64(content) for content in encoded]


def test_what_is_no_sequence_of_texts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^text_keys: a sequence of texts is wanted, not the text 'user'$"):
        text_keys("user")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        text_keys(["\ud800"])
