"""Datasets for scripts: random choices that are repeated, and streams in units."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.errors import DataError
from dbelief.script.sampler import LeasedIndices

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from tests.script.test_whole import launch  # noqa: E402  (after the check for torch)

BATCHES = [LeasedIndices([3, 1], (0, 0, 1, 0)), LeasedIndices([3, 1], (0, 0, 1, 2)), LeasedIndices([0], (0, 1, 2, 0))]


class Noisy:
    """Samples with noise of three generators."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + random.random(), index + np.random.rand(), index + torch.rand(()).item()])


class Together(Noisy):
    """The like, which makes a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [torch.rand(2) for _ in indices]


def batches(dataset: Any, processes: int) -> list[Any]:
    from torch.utils.data import DataLoader

    return list(DataLoader(dataset, batch_sampler=BATCHES, num_workers=processes))


@pytest.mark.parametrize("dataset", [Noisy(), Together()])
def test_random_choices_do_not_depend_on_the_loaders_processes(dataset: Any) -> None:
    from dbelief.torch import SeededDataset

    seeded = SeededDataset(dataset)
    random.seed(1)
    here = batches(seeded, 0)
    random.seed(2)
    there = batches(seeded, 1)
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert not torch.equal(here[0], here[1]), "another batch of the same samples"
    assert len(seeded) == 4


def test_generators_of_the_script_are_as_they_were() -> None:
    from dbelief.torch import SeededDataset

    def drawn() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    def seed() -> None:
        random.seed(5)
        np.random.seed(6)
        torch.manual_seed(7)

    seed()
    wanted = drawn()
    seed()
    SeededDataset(Noisy()).__getitems__(BATCHES[0])
    assert drawn() == wanted


class Stream:
    """Numbers in units."""

    def __init__(self, *units: str) -> None:
        self.units = units

    def read(self, unit: str) -> Iterator[int]:
        """As many numbers as the name says."""
        return iter(range(int(unit)))

    def __iter__(self) -> Iterator[int]:
        return (number for unit in self.units for number in self.read(unit))


def test_items_are_units() -> None:
    from torch.utils.data import DataLoader

    from dbelief.torch import UnitDataset

    units = UnitDataset(Stream("2", "3", "1"))
    assert len(units) == 3
    loader = DataLoader(units, batch_sampler=[[2, 0], [1]], collate_fn=units.collate)
    assert [batch.tolist() for batch in loader] == [[0, 0, 1], [0, 1, 2]]


class Endless:
    """A stream without units or a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


def test_streams_without_units_are_refused() -> None:
    from dbelief.torch import SeededDataset, UnitDataset

    with pytest.raises(DataError, match=r"^Noisy has no units that can be read again: it needs `units`"):
        UnitDataset(Noisy())  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"^Stream has two units of the name '3'$"):
        UnitDataset(Stream("3", "1", "3"))
    odd = Stream("1")
    odd.units = "12"  # type: ignore[assignment]
    with pytest.raises(DataError, match=r"^Stream has no units that can be read again: it needs `units`, a list"):
        UnitDataset(odd)
    with pytest.raises(DataError, match=r"^Endless is a stream: a SeededDataset needs a length and items by index$"):
        SeededDataset(Endless())
    with pytest.raises(DataError, match=r"^unit '0' of Stream has no samples$"):
        UnitDataset(Stream("0"))[0]


STREAM = """
import sys

import torch
from torch.utils.data import DataLoader

import dbelief


class Records:
    units = [f"file-{number}" for number in range(12)]

    def read(self, unit):
        number = int(unit.removeprefix("file-"))
        return [(number, torch.full((2,), float(number)) + torch.rand(2)) for _ in range(1 + number % 3)]


torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
units = dbelief.torch.SeededDataset(dbelief.torch.UnitDataset(Records()))
with dbelief.join() as job, open(f"{sys.argv[1]}-{job.replica}", "a") as log:
    sync = dbelief.torch.Sync(job, model, torch.optim.SGD(model.parameters(), lr=0.001))
    collate = dbelief.torch.UnitDataset.collate
    for number, x in DataLoader(units, batch_sampler=job.sampler(units, 1), collate_fn=collate, num_workers=1):
        log.write(f"{int(number[0])} {len(x)}\\n")
        loss = model(x).square().mean()
        loss.backward()
        sync.step(loss, samples=1)
"""
STREAM_JOB = """
name: stream
model: {source: script}
data: {source: script, train: 12}
strategy: {name: downpour, batch: 1, rule: {name: sgd, rate: 0.001}, warm_start: null}
limits: {epochs: 2}
"""


@pytest.mark.processes
def test_units_of_a_stream_are_leased(tmp_path: Path) -> None:
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    launch(tmp_path, STREAM_JOB, 2, script, "trained")
    trained = [line for log in tmp_path.glob("trained-*") for line in log.read_text().splitlines()]
    assert sorted(trained) == sorted(f"{number} {1 + number % 3}" for number in range(12) for _ in range(2))
