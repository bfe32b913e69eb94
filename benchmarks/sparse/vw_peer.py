"""Logistic regression by Vowpal Wabbit, in an interpreter of its own that has its package, and not dbelief.

    python vw_peer.py SEED FIT HELD TRAIN TEST

The files are VW's text. Its default, a normalised adaptive step, and its FTRL are trained on FIT; rate and passes are
those with the least log loss on HELD. Then TRAIN is trained on, in an order drawn for each pass. It prints, as JSON,
setting, seconds of that training, and the raw predictions of TEST, which are logits, by way.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WAYS = {"VW": "--learning_rate {rate}", "VW FTRL": "--ftrl --ftrl_alpha {rate} --ftrl_beta 1"}
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
PASSES = (1, 4, 16)


def passes(way: str, rate: float, lines: list[str], seed: int, count: int) -> Iterator[Any]:
    """The model after each pass over the lines."""
    from vowpalwabbit import Workspace

    order, draw = list(lines), random.Random(seed)
    model = Workspace(f"--quiet --loss_function logistic -b 22 {WAYS[way].format(rate=rate)}")
    for _ in range(count):
        draw.shuffle(order)
        for line in order:
            model.learn(line)
        yield model
    model.finish()


def log_loss(model: Any, lines: list[str]) -> float:
    """Mean over the lines, whose labels are -1 and 1."""
    margins = (int(line.split(" ", 1)[0]) * model.predict(line) for line in lines)
    return math.fsum(math.log1p(math.exp(-margin)) for margin in margins) / len(lines)


def best(way: str, fit: list[str], held: list[str], seed: int) -> tuple[float, int]:
    """Rate and passes with the least log loss."""
    tries = [
        (log_loss(model, held), rate, number)
        for rate in RATES
        for number, model in enumerate(passes(way, rate, fit, seed, max(PASSES)), 1)
        if number in PASSES
    ]
    return min(tries)[1:]


def main() -> None:
    """Train both ways."""
    seed = int(sys.argv[1])
    fit, held, train, test = (Path(name).read_text().splitlines() for name in sys.argv[2:])
    found = {}
    for way in WAYS:
        rate, count = best(way, fit, held, seed)
        began_s = time.monotonic()
        for number, model in enumerate(passes(way, rate, train, seed, count), 1):
            if number == count:
                took_s = time.monotonic() - began_s
                logits = [model.predict(line) for line in test]
                setting = f"rate {rate:g}, passes {count}"
                found[way] = {"setting": setting, "seconds": took_s, "logits": logits}
    print(json.dumps(found))


main()
