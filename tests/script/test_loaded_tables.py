"""The module of a script, used without a job: with the rows of its run's last set, or of exported files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from safetensors.torch import load_file  # noqa: E402

import dbelief  # noqa: E402  (after the check for torch)
from dbelief.errors import ModelError  # noqa: E402
from dbelief.sparse.saved.loaded_tables import LoadedTable  # noqa: E402
from dbelief.sparse.saved.row_file import TableParts  # noqa: E402
from dbelief.sparse.saved.set_rows import SavedRows  # noqa: E402
from dbelief.sparse.table import SparseTable  # noqa: E402
from dbelief.sparse.text_keys import text_keys  # noqa: E402
from dbelief.torch.embedding import embeddings_of  # noqa: E402
from tests.script.rows import IDS, Clicks, dataset, new_out  # noqa: E402
from tests.script.test_tables import JOB, ROWS  # noqa: E402
from tests.script.test_whole import launch  # noqa: E402


def loaded() -> dict[str, LoadedTable]:
    table = SparseTable("t", 2, 5, 0.5, 0.1, 0, 1)
    keys = np.arange(-3, 7)
    parts = [(keys, np.arange(20, dtype=np.float32).reshape(10, 2))]
    return {"t": LoadedTable(TableParts(table, "int64", parts), "init")}


def test_loaded_rows_are_read_and_never_trained() -> None:
    tables = loaded()
    row, bag = dbelief.torch.Embedding(tables, "t"), dbelief.torch.EmbeddingBag(tables, "t", mode="mean")
    weights = torch.from_numpy(tables["t"].rows(np.arange(-3, 8)))
    assert weights[-1].abs().max() < 0.5
    keys, offsets = torch.tensor([7, -3, 0, 7]), torch.tensor([0, 1, 1])
    assert embeddings_of(torch.nn.ModuleList([row, bag]), {}) == [], "a Sync attaches those of the job alone"
    for module, plain, given in [
        (row, torch.nn.Embedding.from_pretrained(weights), [keys.reshape(2, 2)]),
        (bag, torch.nn.EmbeddingBag.from_pretrained(weights, mode="mean"), [keys, offsets]),
    ]:
        assert torch.equal(module(*given), plain(given[0] + 3, *given[1:]))
        assert not module(*given).requires_grad
        assert module.take() == []
        assert list(module.state_dict()) == []
    with pytest.raises(ModelError, match=r"EmbeddingBag: there is no table 'u'; tables: t$"):
        dbelief.torch.EmbeddingBag(tables, "u")


def test_loaded_rows_are_found_by_texts() -> None:
    keys = np.sort(text_keys(["a", "b"]))
    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    table = LoadedTable(TableParts(SparseTable("t", 2, 5, 0.5, 0.1, 0, 1), "text", [(keys, rows)]), "zero")
    bag = dbelief.torch.EmbeddingBag({"t": table}, "t", mode="sum")
    assert torch.equal(bag([["a", "b"], ["b", "c"]]), torch.from_numpy(np.stack([rows.sum(0), table.rows(["b"])[0]])))


@pytest.mark.long
@pytest.mark.processes
def test_predictions_without_the_job_are_those_by_the_rows_of_its_last_set(tmp_path: Path) -> None:
    launch(tmp_path, JOB.replace("epochs: 3", "epochs: 12"), 2, ROWS, str(tmp_path))
    run = tmp_path / "runs" / "rows"
    command = [sys.executable, "-m", "dbelief", "export", str(run), "--tables", str(tmp_path / "exported")]
    for form in ("safetensors", "parquet"):
        subprocess.run([*command, "--format", form], check=True)
    expected = by_rows_of_the_set(run)
    ends = [json.loads(file.read_text())["rows"] for file in tmp_path.glob("end-*.json")]
    for source in (run, tmp_path / "exported"):
        tables = dbelief.load_tables(source)
        module = Clicks(dbelief.torch.Embedding(tables, "user"), dbelief.torch.EmbeddingBag(tables, "item", mode="sum"))
        dbelief.load_model(run, into=module)
        _, users, items, _ = dataset().tensors
        assert torch.equal(module(users, items), expected)
        at_end = [module.user(torch.arange(IDS) - 10), module.item(torch.arange(IDS)[:, None] * 10**12)]
        assert [one.tolist() for one in at_end] in ends, "the replica that ended last read these from the shards"


def by_rows_of_the_set(run: Path) -> Any:
    """Logits by torch's own embeddings, of the rows as they are in the set, and initial ones of other keys."""
    saved = SavedRows.newest(run)
    weights = []
    for table, keys in zip(saved.tables, (np.arange(IDS) - 10, np.arange(IDS) * 10**12), strict=True):
        rows = table.initial(keys)
        for one in saved.buckets(table):
            there = np.isin(keys, one.keys)
            rows[there] = one.rows[np.searchsorted(one.keys, keys[there])]
        weights.append(torch.from_numpy(rows))
    user, item = torch.nn.Embedding, torch.nn.EmbeddingBag
    module = new_out(Clicks(user.from_pretrained(weights[0]), item.from_pretrained(weights[1], mode="sum")))
    module.load_state_dict({**module.state_dict(), **load_file(run / "model.safetensors")})
    _, users, items, _ = dataset().tensors
    with torch.no_grad():
        return module(users + 10, items // 10**12)
