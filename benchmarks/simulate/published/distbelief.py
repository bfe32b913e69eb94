"""DistBelief (Dean et al. 2012): time to 16 % accuracy of the speech model, by method and machines (Figs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .comparison import Claim, Comparison, Point
from .simulated import RULE, outcome_of

PARAMETERS = 440 * 2560 + 3 * 2560**2 + 2560 * 8192
"""Section 5: 11 frames of 40 values, four hidden layers of 2,560 nodes, a softmax of 8,192: about 42 million."""
PARTITIONS, MODEL_SPEEDUP = 8, 2.2
"""Section 5: the speech model is fastest on 8 machines, 2.2 times as fast as on one."""
CORES = 20
"""Section 5: no more than 20 cores of a machine."""
OPERATIONS = 6 * PARAMETERS
"""Of a sample: two for each parameter forward, and four backward."""
CORE_PER_S, GPU_PER_S = 5e9, 1e12
LINK = "1Gbit"
BATCH = 200
ADAGRAD_SAMPLES, LBFGS_SAMPLES = 0.8, 10.0
PORTION, PORTIONS_A_PUSH, PORTIONS_A_FETCH = 1000, 8, 64
MACHINE_PER_S = CORES * CORE_PER_S / OPERATIONS
"""Samples a second of one machine."""

SGD, DOWNPOUR, ADAGRAD, SANDBLASTER, GPU = "SGD", "Downpour", "Downpour + Adagrad", "Sandblaster L-BFGS", "GPU"
SAMPLES = {SGD: 1.0, DOWNPOUR: 1.0, ADAGRAD: ADAGRAD_SAMPLES, SANDBLASTER: LBFGS_SAMPLES, GPU: 1.0}
"""Samples to the accuracy, as multiples of those of SGD."""
REPLICAS: Mapping[str, tuple[int, ...]] = {
    SGD: (1,),
    GPU: (1,),
    DOWNPOUR: (5, 10, 20, 40),
    ADAGRAD: (20, 50, 100, 200),
    SANDBLASTER: (250, 500, 1000, 2000),
}
MACHINES = {SGD: PARTITIONS, DOWNPOUR: PARTITIONS, ADAGRAD: PARTITIONS, SANDBLASTER: 1, GPU: 1}
"""Of a replica."""
SECONDS = 600.0

ASSUMED = (
    f"a core does {CORE_PER_S / 1e9:g} GFLOP/s, and all {CORES} of a machine are used; a GPU does "
    f"{GPU_PER_S / 1e12:g} TFLOP/s, as Coates et al. 2013 say of a GTX 680; the paper has no speeds",
    f"each machine has a link of {LINK}; machines of one replica exchange at the same time, each with its own shards",
    f"a mini-batch has {BATCH} samples; fetches and pushes travel beside computing (sec. 4.1: three threads)",
    "there are as many shards as machines of replicas, on hosts of their own that are not counted; SGD and the GPU "
    "keep their parameters",
    f"samples to 16 %, as multiples of those of SGD: Downpour 1 (asynchrony costs none), Adagrad {ADAGRAD_SAMPLES:g}, "
    f"L-BFGS {LBFGS_SAMPLES:g}; the paper has times only",
    "a replica of Sandblaster is one machine; a portion has "
    f"{PORTION:,} samples, gradients are pushed after {PORTIONS_A_PUSH} portions, parameters fetched after "
    f"{PORTIONS_A_FETCH}",
    "the warm start of about 10 hours, which all distributed methods have in common, is not counted",
)
LEFT_OUT = (
    "hours: the text has none, and the plots were not read; times are shares of the GPU's",
    "the end of Sandblaster's passes, its line search and its backup portions: `dbelief simulate` has no passes yet; "
    "its workers hold portions and go on without a barrier, which favours them",
    "bends of the curves: as shards grow with the replicas, nothing saturates, and time falls as machines grow",
    "accuracy: fixed-rate Downpour does not reach 16 % in many cases (sec. 5), which no simulation of time shows",
)


def strategy_of(method: str) -> dict[str, Any]:
    """The strategy section of a method."""
    if method == SANDBLASTER:
        pushes = {"n_push": PORTIONS_A_PUSH, "n_fetch": PORTIONS_A_FETCH}
        return {"name": "downpour", "batch": PORTION, "rule": RULE, "warm_start": None, **pushes}
    return {
        "name": "downpour",
        "batch": BATCH,
        "rule": RULE,
        "warm_start": None,
        "overlap": method in (DOWNPOUR, ADAGRAD),
    }


def groups_of(method: str, replicas: int) -> list[Mapping[str, Any]]:
    """One machine of the simulation for each replica, with the links of all its machines; and hosts of shards."""
    machines = MACHINES[method]
    per_s = MACHINE_PER_S * (MODEL_SPEEDUP if machines == PARTITIONS else 1.0)
    if method in (GPU, SGD):
        return [{"name": "alone", "shards": 1, "step": BATCH / (GPU_PER_S / OPERATIONS if method == GPU else per_s)}]
    size = PORTION if method == SANDBLASTER else BATCH
    link = f"{machines * int(LINK.removesuffix('Gbit'))}Gbit"
    workers = {"name": "replicas", "machines": replicas, "step": size / per_s, "link": link}
    return [workers, {"name": "shards", "machines": replicas * machines, "workers": 0, "shards": 1, "link": LINK}]


def samples_per_s(method: str, replicas: int) -> float:
    """Samples a second of all replicas."""
    outcome = outcome_of(strategy_of(method), groups_of(method, replicas), PARAMETERS, SECONDS, SECONDS / 3)
    return outcome.samples_per_s


def compare() -> Comparison:
    """Simulate all methods."""
    gpu = samples_per_s(GPU, 1)
    rates = {
        (method, count): gpu if method == GPU else samples_per_s(method, count)
        for method, counts in REPLICAS.items()
        for count in counts
    }
    times = {key: SAMPLES[key[0]] * gpu / rate for key, rate in rates.items()}
    points = [
        Point(method, count * MACHINES[method], None, share, "Figs. 4 and 5: plotted only")
        for (method, count), share in times.items()
    ]
    return Comparison(
        "distbelief",
        "Dean et al. 2012, Large scale distributed deep networks",
        "machines",
        "time to 16 % accuracy, as a share of the GPU's",
        points,
        [*_claims(times), *_budgets(times)],
        (*ASSUMED, _implied(rates)),
        LEFT_OUT,
        log=True,
    )


def _claims(times: Mapping[tuple[str, int], float]) -> list[Claim]:
    """Statements of section 5 on Fig. 4, and of the introduction."""
    most, lbfgs = times[ADAGRAD, 200], times[SANDBLASTER, 2000]
    figure = "sec. 5, on Fig. 4"
    samples = "by the samples of L-BFGS"
    said = (
        ("SGD with one replica is the slowest", max(times, key=lambda key: times[key]) == (SGD, 1), ""),
        ("Downpour with 20 replicas is much faster than SGD", times[DOWNPOUR, 20] < times[SGD, 1] / 2, ""),
        ("with Adagrad it is modestly faster", 0.5 < times[ADAGRAD, 20] / times[DOWNPOUR, 20] < 1, "by its samples"),
        ("Sandblaster with 2,000 replicas is considerably faster yet", lbfgs < 0.7 * times[ADAGRAD, 20], samples),
        ("Downpour with Adagrad and 200 replicas is the fastest", min(times.values()) == most, samples),
        ("Downpour with Adagrad is substantially faster than a GPU", most < 0.5, ""),
        ("so is Sandblaster", lbfgs < 0.5, samples),
    )
    claims = [Claim(text, figure, bool(holds), note, bool(note)) for text, holds, note in said]
    return [*claims, Claim("a cluster takes less than a tenth of the GPU's time", "sec. 1", most < 0.1)]


def _budgets(times: Mapping[tuple[str, int], float]) -> list[Claim]:
    """Fig. 5: Downpour with Adagrad is the fastest at the machines of each point of another method."""
    machines = [count * PARTITIONS for count in REPLICAS[ADAGRAD]]
    shares = [times[ADAGRAD, count] for count in REPLICAS[ADAGRAD]]
    claims = []
    for method in (DOWNPOUR, SANDBLASTER):
        at = [(count * MACHINES[method], times[method, count]) for count in REPLICAS[method]]
        both = [(many, share) for many, share in at if machines[0] <= many <= machines[-1]]
        mine = np.exp(np.interp(np.log([many for many, _ in both]), np.log(machines), np.log(shares)))
        faster = bool((mine < [share for _, share in both]).all())
        text = f"with as many machines, Downpour with Adagrad is faster than {method}"
        claims.append(Claim(text, "sec. 5, on Fig. 5", faster, "by the samples of both", assumed=True))
    return claims


def _implied(rates: Mapping[tuple[str, int], float]) -> str:
    """Samples of L-BFGS for which Sandblaster is where the paper has it, and what holds Downpour up."""
    low = rates[SANDBLASTER, 2000] / rates[ADAGRAD, 200] * ADAGRAD_SAMPLES
    high = rates[SANDBLASTER, 2000] / rates[ADAGRAD, 20] * ADAGRAD_SAMPLES
    return (
        "the paper's order of Sandblaster depends on its samples, not on time alone: it holds where L-BFGS needs "
        f"{low:.1f} to {high:.1f} times those of SGD (assumed: {LBFGS_SAMPLES:g}); a replica of Downpour makes "
        f"{rates[DOWNPOUR, 20] / 20:.0f} samples/s of {MODEL_SPEEDUP * MACHINE_PER_S:.0f} that it computes alone: its "
        "links hold it up"
    )
