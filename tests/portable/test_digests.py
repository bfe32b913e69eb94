"""The same bits on every machine: digests of codecs', rules', sums' and programs' outputs are those of the file."""

import json

import pytest

from .digests import FAMILIES, FILE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_every_machine(family: str) -> None:
    held = json.loads(FILE.read_text())[family]
    found = dict(FAMILIES[family]())
    assert found.keys() == held.keys(), "what is compared has changed: `python -m tests.portable.digests --write`"
    assert [case for case in found if found[case] != held[case]] == []
