"""Jobs whose layers read tables: which fields fit them."""

from __future__ import annotations

from collections.abc import Collection

from .models.model import LayersModel, Model
from .sources import Data
from .strategies.downpour import Downpour
from .strategies.strategy import Strategy
from .streamed_sources import BagsData

Misfit = tuple[str, str] | None
"""A field, and why its value does not fit."""


def misfit_of_layers(model: Model, data: Data, tables: Collection[str]) -> Misfit:
    """What of model and data does not fit the tables of a job, by their names."""
    layers = model.table_layers if isinstance(model, LayersModel) else {}
    bags = isinstance(data, BagsData)
    if not layers:
        return ("data.source", "bags is for layers embedding_bag and fm, and the model has none") if bags else None
    if not bags:
        return next(iter(layers)), f"reads rows by keys, which data.source bags has, not {data.source}"
    read: set[str] = set()
    for place, layer in layers.items():
        for name in layer.tables:
            if name not in tables:
                return place, f"needs table {name!r}; tables: {', '.join(tables) or 'none'}"
        read.update(layer.tables)
    return next(((f"tables.{name}", "is read by no layer") for name in tables if name not in read), None)


def misfit_with_bags(strategy: Strategy, device: str, ranks: int, record: bool, keeps_best: bool) -> Misfit:
    """What of a job does not fit layers that read tables."""
    if isinstance(strategy, Downpour) and (strategy.n_push, strategy.n_fetch, strategy.overlap) != (1, 1, False):
        return "strategy", "needs n_push 1, n_fetch 1 and overlap false with tables: rows are read for one mini-batch"
    if getattr(strategy, "clip_norm", None) is not None:
        return "strategy.clip_norm", "must be null with tables: gradients of rows are not part of the norm"
    if device == "cuda":
        return "device", "must be cpu or auto with tables: layers read their rows on the CPU"
    if ranks != 1:
        return "grid", "must be [1] with tables: a layer that reads them is not cut over ranks"
    if record:
        return "record", "must be false with tables: a replay has no rows"
    if keeps_best:
        return "evaluate.keep", "must be last with tables: rows are not kept as they were at the best evaluation"
    return None
