"""`python -m tests.conformance`: are simulated runs of the programs runs of the protocol's model?

Every seed is run as `python -m tests.simulation` runs it, recorded, and projected to traces, one for each segment and
each worker; Spin's verifier of `tests/model/trace.pml` judges them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.model.search import ABSENT
from tests.simulation.command import fix_hashes, seed_options
from tests.simulation.plan.plan import draw_plan
from tests.simulation.seeds import scratch, seeds_of

from .acceptor import Acceptor
from .runs import COVERED, Judged, describe, judge_seeds, record

BEFORE = 30
"""Events that are printed before one that is rejected."""


def main(words: Sequence[str]) -> int:
    """Run the command; 0 where all traces are accepted."""
    options = _options(words)
    if ABSENT:
        print(f"not found: {', '.join(ABSENT)} (Debian: apt-get install spin gcc)", file=sys.stderr)
        return 2
    fix_hashes("tests.conformance", words)
    if options.replay is not None:
        return _replay(options.replay)
    seeds = seeds_of(options.first, options.seeds, options.job or COVERED)
    judged: list[Judged] = []
    for one in judge_seeds(seeds, options.processes, options.results):
        judged.append(one)
        if one.rejected:
            print(f"seed {one.seed} ({one.job}): {one.rejected}", flush=True)
            if options.stop:
                return 1
        if len(judged) % 50 == 0:
            print(f"{len(judged)} of {len(seeds)} runs", file=sys.stderr, flush=True)
    print(_table(judged))
    return 1 if any(one.rejected for one in judged) else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = seed_options("tests.conformance", __doc__, 1000, COVERED)
    parser.add_argument("--replay", type=int, metavar="SEED", help="judge one seed, and print a rejected trace")
    return parser.parse_args(words)


def _replay(seed: int) -> int:
    """Judge one seed, and print the events before the first that is rejected."""
    logging.disable(logging.CRITICAL)
    plan = draw_plan(seed)
    print(plan)
    with scratch() as folder, tempfile.TemporaryDirectory() as compiled:
        acceptor = Acceptor.compile(Path(compiled))
        traces = record(plan, folder)
        for trace in traces:
            verdict = acceptor.judge(trace.events)
            if not verdict.accepted:
                shown = range(max(0, verdict.position - BEFORE), verdict.position + 1)
                print("\n".join(f"  {number}: {trace.events[number]}" for number in shown))
                print(describe(trace, verdict))
                return 1
    print(f"{len(traces)} traces accepted, of {sum(len(trace.events) for trace in traces)} events")
    return 0


def _table(judged: Sequence[Judged]) -> str:
    """Figures by job, of all runs, and by kind of action."""
    lines = [
        f"{'job':18} {'runs':>5} {'whole':>8} {'traces':>7} {'accepted':>8} {'actions':>9} {'cpu s':>7} {'judged s':>8}"
    ]
    for name in (*COVERED, ""):
        mine = [one for one in judged if name in ("", one.job)]
        if mine:
            lines.append(
                f"{name or 'all':18} {len(mine):5} {sum(not one.rejected for one in mine):8} "
                f"{sum(one.traces for one in mine):7} {sum(one.accepted for one in mine):8} "
                f"{sum(sum(one.actions.values()) for one in mine):9} {sum(one.cpu_s for one in mine):7.0f} "
                f"{sum(one.judged_s for one in mine):8.0f}"
            )
    actions: Counter[str] = Counter()
    for one in judged:
        actions.update(one.actions)
    lines.append("actions: " + ", ".join(f"{kind} {count}" for kind, count in actions.most_common()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
