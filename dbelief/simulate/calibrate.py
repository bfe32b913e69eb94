"""Costs that are fitted to real runs, and the errors of what they predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .costs import Costs
from .description import Scenario
from .outcome import run

RATE, STALENESS, SENT, RECEIVED = "samples_per_s", "staleness_mean", "bytes_sent_per_s", "bytes_received_per_s"
WORKERS, SHARDS = "worker_processors", "shard_processors"
MEASURES = (RATE, STALENESS, SENT, RECEIVED, WORKERS, SHARDS)
FITTED = (
    "push_call_s",
    "push_number_s",
    "fetch_call_s",
    "fetch_number_s",
    "client_call_s",
    "client_number_s",
    "wake_s",
    "rounds",
    "message_s",
    "message_byte_s",
    "shared",
    "slowdown",
    "trips",
    "lockstep_slowdown",
    "lockstep_trips",
)
"""Costs that change the rate of a job, or the processors that it uses; the others are measured by themselves."""
SWEEPS = 3
_STEPS = (2.0, 1.4, 1.15)
"""Factors by which a cost is moved up or down, in each sweep as long as that helps."""
_LEAST = {"rounds": 1.0, "slowdown": 1.0, "lockstep_slowdown": 1.0, "trips": 1.0, "lockstep_trips": 1.0}
_MOST_MOVES = 12
_KNOWN = 0.005
"""Error of a run that a cost has to save to be moved to e times its value."""
_LEAST_STALENESS = 0.5
"""Staleness that errors are a share of, at least."""


@dataclass(frozen=True)
class MeasuredJob:
    """A real run, and how it is simulated.

    Attributes
    ----------
    scenario
        What is simulated; its costs are replaced.
    measured
        By measure, some of `MEASURES`.
    """

    name: str
    scenario: Callable[[Costs], Scenario]
    measured: Mapping[str, float]

    def predicted(self, costs: Costs) -> dict[str, float]:
        """All `MEASURES`, as simulated."""
        outcome, _ = run(self.scenario(costs))
        return {
            RATE: outcome.samples_per_s,
            STALENESS: outcome.staleness_mean,
            SENT: outcome.sent_per_s,
            RECEIVED: outcome.received_per_s,
            WORKERS: outcome.processors["workers"],
            SHARDS: outcome.processors["shards"],
        }

    def errors(self, costs: Costs) -> dict[str, float]:
        """By measure, predicted over measured, minus 1; of staleness, of at least half a version."""
        found = self.predicted(costs)
        return {name: _error(name, found[name], value) for name, value in self.measured.items() if name in found}


def _error(name: str, predicted: float, measured: float) -> float:
    if name == STALENESS:
        return (predicted - measured) / max(measured, _LEAST_STALENESS)
    if measured == 0:
        return 0.0 if predicted == 0 else math.inf
    return predicted / measured - 1


def calibrated(runs: Sequence[MeasuredJob], start: Costs | None = None) -> Costs:
    """The costs with the smallest errors of these runs, by moves of one cost at a time.

    The errors are those of the rate, and of processor seconds of a sample, which other programs do not change; these
    count by the processors in use, as those of a process that mostly waits are of its threads in the background.

    Cost: some two hundred simulations of each run.
    """
    costs = known = start or Costs()
    least = _distance(runs, costs, known)
    for factor in _STEPS[:SWEEPS]:
        for name in FITTED:
            for direction in (factor, 1 / factor):
                for _ in range(_MOST_MOVES):
                    value = max(_LEAST.get(name, 0.0), getattr(costs, name) * direction)
                    moved = costs.with_values(**{name: value})
                    distance = _distance(runs, moved, known)
                    if distance >= least:
                        break
                    costs, least = moved, distance
    return costs


def _distance(runs: Sequence[MeasuredJob], costs: Costs, known: Costs) -> float:
    """Sum of the errors' means, as logarithms, so that twice and half count alike; and how far costs are moved.

    Few runs do not tell all costs apart: those that they say nothing of stay as they are known.
    """
    pairs = [(getattr(costs, name), getattr(known, name)) for name in FITTED]
    moved = sum(abs(math.log(now / before)) for now, before in pairs if before > 0)
    return fmean(_distance_of(one, one.predicted(costs)) for one in runs) + _KNOWN * moved


def _distance_of(one: MeasuredJob, predicted: Mapping[str, float]) -> float:
    rate = _log_ratio(one, predicted, RATE)
    used = [measure for measure in (WORKERS, SHARDS) if one.measured.get(measure)]
    each = [min(1.0, one.measured[measure]) * abs(_log_ratio(one, predicted, measure) - rate) for measure in used]
    return abs(rate) + sum(each)


def _log_ratio(one: MeasuredJob, predicted: Mapping[str, float], measure: str) -> float:
    return math.log(max(1e-9, predicted[measure]) / one.measured[measure])
