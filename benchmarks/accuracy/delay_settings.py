"""Settings of each way to train with delays: the unchanged one, which suits one replica, and those that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Fields = dict[str, Any]
UNCHANGED = "unchanged"
BATCH = {"mnist": 20, "gpt": 8}
SAMPLES = {"mnist": 220_000, "gpt": 16_000}
"""Of a training that is measured."""
RATES = {
    "mnist": {"adagrad": 0.01, "sgd": 0.1, "easgd": 0.05, "inner": 0.05},
    "gpt": {"adagrad": 0.01, "sgd": 0.2, "easgd": 0.2, "inner": 0.2},
}
WAYS = {"downpour": "Downpour", "easgd": "async-easgd", "diloco": "DiLoCo"}
"""By key, as tables and pictures name them."""


def unchanged(way: str, model: str) -> Fields:
    """The `strategy` section for one replica."""
    rates, batch = RATES[model], BATCH[model]
    return {
        "downpour": {"name": "downpour", "batch": batch, "rule": {"name": "adagrad", "rate": rates["adagrad"]}},
        "easgd": {"name": "async-easgd", "batch": batch, "rate": rates["easgd"], "period": 4},
        "diloco": {"name": "diloco", "batch": batch, "steps": 5, "inner": {"name": "sgd", "rate": rates["inner"]}},
    }[way]


def _downpour(model: str, replicas: int) -> dict[str, Fields]:
    rates = RATES[model]
    warm = {"warm_start": {"share": 0.25}}
    scaled = {"rule": {"name": "adagrad", "rate": rates["adagrad"] / replicas**0.5}}
    aware = {"rule": {"name": "sgd", "rate": rates["sgd"]}, "staleness_aware": True}
    return {
        "rate / √replicas": scaled,
        "rate / √replicas, warm start of a quarter": scaled | warm,
        "SGD, rate / staleness": aware,
        "SGD, rate / staleness, warm start of a quarter": aware | warm,
    }


def _easgd(model: str, replicas: int) -> dict[str, Fields]:
    rate = RATES[model]["easgd"]
    return {
        "alpha 0.1": {"rho": 0.1 / rate},
        "alpha 0.1, period 1": {"rho": 0.1 / rate, "period": 1},
        "alpha 0.02, period 1": {"rho": 0.02 / rate, "period": 1},
    }


def _diloco(model: str, replicas: int) -> dict[str, Fields]:
    quorum = {"steps": 1, "quorum": max(1, replicas // 10), "grace_s": 0, "stale": 1.0}
    plain = {"outer": {"name": "sgd", "rate": 1.0}}
    quick = {"inner": {"name": "sgd", "rate": 4 * RATES[model]["inner"]}}
    return {
        "1 inner step": {"steps": 1},
        "1 inner step, quorum of a tenth": quorum,
        "1 inner step, quorum of a tenth, outer SGD, inner rate x 4": quorum | plain | quick,
    }


_TRIED: Mapping[str, Callable[[str, int], dict[str, Fields]]] = {
    "downpour": _downpour,
    "easgd": _easgd,
    "diloco": _diloco,
}


def settings(way: str, model: str, replicas: int) -> dict[str, Fields]:
    """The `strategy` section of each setting, by its name, the unchanged one first; of one replica only that."""
    first = unchanged(way, model)
    tried = _TRIED[way](model, replicas) if replicas > 1 else {}
    return {UNCHANGED: first} | {name: first | fields for name, fields in tried.items()}
