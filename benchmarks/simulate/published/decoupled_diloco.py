"""Decoupled DiLoCo (2026, arXiv:2604.21428): goodput while chips fail, by chips and learners (Table 1)."""

from __future__ import annotations

from typing import Any

from .comparison import Claim, Comparison, Point
from .simulated import RULE, outcome_of

YEAR_S = 365.0 * 86400
"""Mean time between interruptions of a chip: one year."""
CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
RIGID, ELASTIC = "data-parallel, not elastic", "data-parallel, elastic"
TABLE = {
    RIGID: (72, 57, 38, 27, 18),
    ELASTIC: (88, 80, 69, 58, 40),
    "2 learners": (94, 88, 80, 70, 54),
    "4 learners": (96, 93, 89, 82, 73),
    "8 learners": (98, 96, 94, 88, 80),
    "16 learners": (99, 98, 96, 93, 86),
}
"""Table 1, percent, by chips."""
LEARNERS = {RIGID: 1, ELASTIC: 1, "2 learners": 2, "4 learners": 4, "8 learners": 8, "16 learners": 16}
PARAMETERS = 5e9
"""A dense model of 5 billion parameters."""
STEPS, DELAY = 24, 2
"""H, and the steps that an exchange travels beside."""
FRAGMENTS = STEPS // DELAY
STEP_S = 1.0
SECONDS = 200_000.0
MIXED_S = 4_000.0
VARIED, SLOWER = 0.10, 1.18
SOURCE = "Table 1, through summaries"

ASSUMED = (
    "the paper's own text was not read: its values are those of a public summary that has all of Table 1; 9 of the 30 "
    "cells, at 1.2 and 2.4 million chips, are in other summaries too, with the same values (one of these has 58 and "
    "88 % at 2.4 million)",
    "an interruption stops its learner with all its chips for a time that is the same at every number of chips: so "
    "that one learner at 150,000 chips has 72 % without and 88 % with elasticity; how long the paper's stops are was "
    "not found",
    "while a learner has stopped, no other of its chips fails; after the stop it has all its chips",
    f"a step takes {STEP_S:g} s; learners exchange {FRAGMENTS} fragments in H = {STEPS} steps, each beside "
    f"{DELAY} steps (the paper: 24 fragments), over links that are fast enough; the quorum is one learner",
    "goodput is the rate of steps as a share of that without failures",
)
LEFT_OUT = (
    "slices that stay away for a time while their learner goes on with fewer: of a group that has lost members the "
    "simulation has no elastic form within one learner",
    "stops that overlap: at 2.4 million chips the paper's goodput of one learner falls less than that of stops that "
    "follow each other",
)


def stop_s(percent: float) -> float:
    """Seconds of a stop with which one learner of the fewest chips has such a goodput."""
    return YEAR_S / CHIPS[0] * (100 / percent - 1)


def strategy_of(quorum: int) -> dict[str, Any]:
    """The strategy section."""
    rounds = {"steps": STEPS, "fragments": FRAGMENTS, "delay": DELAY, "quorum": quorum}
    return {"name": "diloco", "batch": 1, "inner": RULE, **rounds}


def goodput(learners: int, chips: int, stopped_s: float) -> float:
    """Percent."""
    groups: list[Any] = [
        {
            "name": "learners",
            "machines": learners,
            "step": STEP_S,
            "spread": 0.0,
            "life": YEAR_S * learners / chips,
            "returns": stopped_s,
        },
        {"name": "syncer", "workers": 0, "shards": 1},
    ]
    outcome = outcome_of(strategy_of(1), groups, PARAMETERS, SECONDS)
    return 100 * outcome.samples_per_s * STEP_S / learners


def compare() -> Comparison:
    """Table 1."""
    stops = {RIGID: stop_s(TABLE[RIGID][0]), ELASTIC: stop_s(TABLE[ELASTIC][0])}
    points = []
    for method, row in TABLE.items():
        for chips, percent in zip(CHIPS, row, strict=True):
            value = goodput(LEARNERS[method], chips, stops.get(method, stops[ELASTIC]))
            points.append(Point(method, chips, percent, value, SOURCE, method in stops and chips == CHIPS[0]))
    at = {(point.method, point.x): point.simulated for point in points}
    million = 1_200_000
    claims = (
        Claim(
            "at 1.2 million chips 8 learners have 88 %, data-parallel training 27 %: three times as much",
            SOURCE,
            2.5 < at["8 learners", million] / at[RIGID, million] < 4.0,
        ),
        Claim("elastic data-parallel training is between them, at 58 %", SOURCE, _between(at, million)),
        Claim(
            "M learners have about the goodput of one with an Mth of the chips",
            "the paper's rule, through summaries",
            all(
                abs(at[f"{many} learners", many * chips] - at[ELASTIC, chips]) < 3
                for many in (2, 4, 8, 16)
                for chips in CHIPS
                if many * chips in CHIPS
            ),
        ),
    )
    stopped = ", ".join(f"{seconds:.0f} s" for seconds in stops.values())
    return Comparison(
        "decoupled-diloco",
        "Decoupled DiLoCo for resilient distributed pre-training, 2026, arXiv:2604.21428",
        "chips",
        "goodput, %",
        points,
        claims,
        (*ASSUMED[:1], f"{ASSUMED[1]} (they come out as {stopped})", *ASSUMED[2:]),
        LEFT_OUT,
    )


def _between(at: dict[tuple[str, float], float], chips: int) -> bool:
    return at[RIGID, chips] < at[ELASTIC, chips] < at["8 learners", chips]


def compare_quorums() -> Comparison:
    """Two generations of chips: a quorum of all learners against one of a single learner."""
    paper = {8: 84.0, 1: 100.0}
    points = []
    for quorum, percent in paper.items():
        groups: list[Any] = [
            {"name": "new", "machines": 4, "step": STEP_S, "spread": VARIED},
            {"name": "old", "machines": 4, "step": SLOWER * STEP_S, "spread": VARIED},
            {"name": "syncer", "workers": 0, "shards": 1},
        ]
        outcome = outcome_of(strategy_of(quorum), groups, PARAMETERS, MIXED_S)
        points.append(Point(f"quorum {quorum}", 8, percent, 100 * outcome.computing, "experiment on mixed chips"))
    return Comparison(
        "decoupled-diloco-quorum",
        "Decoupled DiLoCo for resilient distributed pre-training, 2026, arXiv:2604.21428",
        "learners",
        "goodput, %",
        points,
        assumed=(
            "the paper's own text was not read: both values are those of one public summary",
            f"4 learners are {100 * (SLOWER - 1):.0f} % slower (the paper: TPU v5p beside v6e), and steps of all "
            f"differ by {100 * VARIED:.0f} %, each for itself",
            ASSUMED[3].replace("; the quorum is one learner", ""),
            "goodput is the share of the learners' time that is computing",
        ),
    )
