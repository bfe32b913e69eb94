"""Keys given to a script's modules: tensors, arrays and lists, of numbers or texts; and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.errors import ModelError, UserError  # noqa: E402  (after the check for torch)
from dbelief.job import Job, parse_job  # noqa: E402
from dbelief.sparse.table import number_tables  # noqa: E402
from dbelief.sparse.table_reader import TableReader  # noqa: E402
from dbelief.sparse.text_keys import text_keys  # noqa: E402
from dbelief.torch.embedding import Embedding, EmbeddingBag  # noqa: E402

WORDS = ["ann", "bob", "", "Ä", "ann", "eve"]
HASHED = torch.from_numpy(text_keys(WORDS))


def job(more: str = "") -> Job:
    text = """
name: keys
model: {source: script}
data: {source: script, train: 10}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
tables: {user: {width: 3, rule: {name: sgd, rate: 0.1}, MORE}}
"""
    return parse_job(text.replace("MORE", more or "init: uniform(0.5)"), Path(), "job")


def made(kind: type[EmbeddingBag], keys: str) -> EmbeddingBag:
    """A module whose rows are all initial ones."""
    of = job(f"keys: {keys}, init: uniform(0.5)")
    module = kind(SimpleNamespace(membership=SimpleNamespace(job=of)), "user")  # type: ignore[arg-type]
    shards: Any = SimpleNamespace(pull_rows=lambda wanted, *_: [one.initial(keys) for one, keys in wanted.items()])
    module.attach(TableReader(shards, number_tables(of.tables, of.seed, 1), np.zeros(99, np.int64)))
    return module


def test_texts_are_their_hashes() -> None:
    by_text, by_key = (made(EmbeddingBag, kind) for kind in ("text", "int64"))
    weights = torch.linspace(-1, 1, 6)
    for starts in ([0, 2, 3], [0, 0, 6]):
        bags = [WORDS[a:b] for a, b in zip(starts, [*starts[1:], 6], strict=True)]
        wanted = by_key(HASHED, torch.tensor(starts), weights)
        assert torch.equal(by_text(bags, per_sample_weights=weights), wanted)
        assert torch.equal(by_text(WORDS, torch.tensor(starts), weights), wanted)
        assert torch.equal(by_key([bag.tolist() for bag in HASHED.tensor_split(starts[1:])], None, weights), wanted)
    for whole in (np.array(WORDS).reshape(2, 3), np.array(WORDS, object).reshape(2, 3)):
        assert torch.equal(by_text(whole), by_key(HASHED.reshape(2, 3)))


def test_rows_of_single_keys() -> None:
    by_text, by_key = (made(Embedding, kind) for kind in ("text", "int64"))
    rows = by_key(HASHED)
    assert rows.shape == (6, 3)
    assert torch.equal(rows[0], rows[4])
    assert torch.equal(by_text(tuple(WORDS)), rows)
    for module, keys in ((by_text, WORDS), (by_key, HASHED.tolist())):
        assert torch.equal(module([keys[:3], keys[3:]]), rows.reshape(2, 3, 3))
    assert torch.equal(by_key(HASHED.numpy()), rows)
    small = torch.arange(4).to(torch.uint64)
    assert torch.equal(by_key(small), by_key(torch.arange(4)))


@pytest.mark.parametrize(
    ("kind", "keys", "given", "message"),
    [
        (EmbeddingBag, "int64", [["ann"]], "keys are text ('ann'), must be whole numbers: the table has keys: int64"),
        (Embedding, "int64", np.array(["ann"]), "keys are text ('ann'), must be whole numbers"),
        (Embedding, "int64", torch.ones(2), "keys are torch.float32, must be whole numbers"),
        (Embedding, "int64", torch.ones(2) > 0, "keys are torch.bool, must be whole numbers"),
        (Embedding, "int64", [3, 2**63], "the key 9223372036854775808 is beyond int64"),
        (Embedding, "int64", torch.tensor([3, 2**63 + 7], dtype=torch.uint64), "the key 9223372036854775815 is beyond"),
        (Embedding, "text", torch.arange(2), "keys are torch.int64, must be texts: the table has keys: text"),
        (EmbeddingBag, "text", [[5]], "keys are int (5), must be texts"),
        (Embedding, "text", "ann", "keys are str, must be a tensor, an array or a list"),
        (Embedding, "text", [["a"], []], "lists of keys of several lengths, which EmbeddingBag takes"),
    ],
)
def test_other_keys_are_refused_in_one_line(kind: type[EmbeddingBag], keys: str, given: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        made(kind, keys)(given)
    where = re.escape(f"{kind.__name__} of table 'user': {message}")
    assert re.search(where, str(refused.value))
    assert "\n" not in str(refused.value)


def test_lists_have_no_offsets_beside_them() -> None:
    with pytest.raises(UserError, match="offsets beside lists of keys, which are bags themselves"):
        made(EmbeddingBag, "int64")([[1], [2]], torch.tensor([0, 1]))


def test_a_module_of_another_job_is_refused() -> None:
    module = made(EmbeddingBag, "int64")
    module.check_table(job("admit: null").tables)
    other = job().model_copy(update={"tables": {}})
    with pytest.raises(ModelError, match="table 'user': made for rows of 3 numbers, and the job of Sync has none"):
        module.check_table(other.tables)
    wider = {"user": job().tables["user"].model_copy(update={"width": 8})}
    with pytest.raises(ModelError, match="and the job of Sync has rows of 8"):
        module.check_table(wider)
