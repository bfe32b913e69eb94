"""`python -m tests.simulation`: run seeds, in all strategies and with all kinds of faults; replay and shrink one.

Every choice of a run follows from its seed, its hashes too: the interpreter starts again with a fixed hash seed.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .command import fix_hashes, seed_options
from .models.jobs import JOBS
from .plan.plan import Ways, draw_plan
from .planted.errors import PLANTED
from .planted.search import SEARCHES, search_for
from .seeds import Result, run_plan, run_seeds, seeds_of, shrink


def main(words: Sequence[str]) -> int:
    """Run the command; 0 where no invariant was violated."""
    options = _options(words)
    fix_hashes("tests.simulation", words)
    if options.replay is not None:
        return _replay(options.replay, _ways(options), options.faults, options.verbose)
    if options.planted is not None:
        return _planted(options.planted, options.seeds, options.processes, _ways(options))
    results: list[Result] = []
    seeds = seeds_of(options.first, options.seeds, options.job)
    for result in run_seeds(seeds, options.processes, options.results, _ways(options)):
        results.append(result)
        if result.violations:
            print(f"seed {result.seed}, {result.job}: {result.violations[0]}", flush=True)
            if options.stop:
                return 1
        if len(results) % 100 == 0:
            print(f"{len(results)} of {len(seeds)} seeds", file=sys.stderr, flush=True)
    print(_table(results))
    failed = [result for result in results if result.violations]
    for result in failed[:3]:
        _replay_smallest(result.seed, _ways(options))
    return 1 if failed else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = seed_options("tests.simulation", __doc__, 100, list(JOBS))
    parser.add_argument(
        "--shared-memory", action="store_true", help="all processes share memory: pushes and records by local streams"
    )
    parser.add_argument("--direct-streams", action="store_true", help="pushes and fetches by direct streams")
    parser.add_argument("--planted", nargs="*", metavar="NAME", help="search for planted errors: these, or all")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, and print its plan and its log")
    parser.add_argument("--faults", help="of a replay: numbers of the faults to keep, as 0,2; all by default")
    parser.add_argument("--verbose", action="store_true", help="of a replay: with the log of all processes")
    return parser.parse_args(words)


def _ways(options: argparse.Namespace) -> Ways:
    return Ways(options.shared_memory, options.direct_streams)


def _planted(names: Sequence[str], seeds: int, processes: int, ways: Ways) -> int:
    """Search for planted errors; 0 where all but two, or all that were named, were found.

    Messages that go other ways than by default are no part of the model's traces: then it judges none.
    """
    chosen = [one for one in PLANTED if not names or one.name in names]
    searches = SEARCHES[:1] if ways.options else SEARCHES
    missed = []
    for one in chosen:
        found = search_for(one, seeds, processes, searches, ways.options.split())
        print(f"{one.name}: {found or f'not found in {seeds} seeds'}", flush=True)
        missed += [] if found else [one.name]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found; not found: {', '.join(missed) or 'none'}")
    return 1 if len(missed) > (0 if names else 2) else 0


def _replay(seed: int, ways: Ways, faults: str | None, verbose: bool) -> int:
    """Run a seed and print what happened."""
    plan = replace(draw_plan(seed), ways=ways)
    if faults is not None:
        kept = [int(number) for number in faults.split(",") if number]
        plan = replace(plan, faults=tuple(plan.faults[number] for number in kept))
    logging.disable(logging.NOTSET if verbose else logging.CRITICAL)
    outcome = run_plan(plan)
    print(plan)
    print("\n".join(outcome.log))
    print(f"{outcome.pushes} pushes, {outcome.steps} steps, {outcome.virtual_s:.3f} s, trace {outcome.trace:x}")
    print("\n".join(outcome.violations) or "no violation")
    return 1 if outcome.violations else 0


def _replay_smallest(seed: int, ways: Ways) -> None:
    """Print the smallest plan that still fails, and the command that replays it."""
    logging.disable(logging.CRITICAL)
    whole = replace(draw_plan(seed), ways=ways)
    smallest = shrink(whole)
    kept = ",".join(str(whole.faults.index(fault)) for fault in smallest.faults)
    violations = "; ".join(run_plan(smallest).violations)
    print(f"\n{smallest}\n  {violations}\n  python -m tests.simulation --replay {seed}{ways.options} --faults '{kept}'")


def _table(results: Sequence[Result]) -> str:
    """Figures by job, and of all seeds."""
    lines = [f"{'job':18} {'seeds':>6} {'faults':>7} {'restores':>8} {'pushes':>7} {'cpu s':>6}  violations"]
    for name in (*JOBS, ""):
        mine = [one for one in results if name in ("", one.job)]
        if mine:
            lines.append(
                f"{name or 'all':18} {len(mine):6} {sum(len(one.kinds) for one in mine):7} "
                f"{sum(one.restores for one in mine):8} {statistics.median(one.pushes for one in mine):7.0f} "
                f"{statistics.median(one.cpu_s for one in mine):6.2f}  {sum(bool(one.violations) for one in mine)}"
            )
    kinds = Counter(kind for one in results for kind in one.kinds)
    lines.append("faults: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
