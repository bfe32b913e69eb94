"""Sums of rows over bags against torch's, with their gradients of first and second order."""

from __future__ import annotations

from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from torch.nn import functional  # noqa: E402  (after the check for torch)

from dbelief.torch.bag_sums import bag_sums, bags_of  # noqa: E402

PLACES = torch.tensor([3, 0, 3, 1, 1, 4, 0, 3])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [None, [0, 0, 3, 8], [0, 2]])
def test_sums_and_gradients_are_those_of_torch(mode: Literal["sum", "mean"], offsets: list[int] | None) -> None:
    places = PLACES.view(4, 2) if offsets is None else PLACES
    starts = None if offsets is None else torch.tensor(offsets)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = []
    for own in (True, False):
        rows = weight.clone().requires_grad_()
        bags = bags_of(places, starts, len(rows))
        assert bags is not None
        # torch's embedding_bag has no second gradient: sums of single rows do.
        made = (
            bag_sums(rows, bags, mode)
            if own
            else torch.stack([_bag(rows, bag, mode) for bag in _bags(places, offsets)])
        )
        if starts is None or mode == "sum":
            torch.testing.assert_close(made, functional.embedding_bag(places, rows, starts, mode=mode))
        (first,) = torch.autograd.grad((made**3).sum(), rows, create_graph=True)
        (first**2).sum().backward()
        found.append((made.detach(), first.detach(), rows.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def _bags(places: Any, offsets: list[int] | None) -> list[Any]:
    return list(places) if offsets is None else list(places.tensor_split(offsets[1:]))


def _bag(rows: Any, bag: Any, mode: Literal["sum", "mean"]) -> Any:
    total = rows[bag].sum(0)
    return total / max(1, len(bag)) if mode == "mean" else total


@pytest.mark.parametrize(
    ("places", "offsets"),
    [
        (PLACES, None),
        (PLACES.view(4, 2), torch.tensor([0, 2])),
        (PLACES, torch.tensor([1, 2])),
        (PLACES, torch.tensor([0, 9])),
        (PLACES, torch.tensor([0, 4, 2])),
        (PLACES, torch.tensor([0.0, 2.0])),
    ],
)
def test_what_is_no_bags_is_left_to_torch(places: Any, offsets: Any | None) -> None:
    assert bags_of(places, offsets, 5) is None
