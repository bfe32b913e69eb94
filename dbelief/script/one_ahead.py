"""Batches in pairs with the next one, for what a loop prepares while it computes a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def one_ahead(loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Batches, each with the one that follows it.

    A sampler of leased samples that has none while a batch is computed may have some after its step: so it is asked
    again then. A loader with processes of its own ends there instead, and what is leased later goes to other replicas.

    Parameters
    ----------
    loader
        A data loader over `job.sampler(...)`, or any iterable whose iterator may go on after its end.

    Returns
    -------
    iterator of (batch, following)
        `following`: the next batch; None where it is not known yet, and for the last one.
    """
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        yield batch, following
        batch = next(batches, None) if following is None else following
