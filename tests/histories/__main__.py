"""The long run: `python -m tests.histories` records and checks one history after the other, and goes on where it ended.

Each checked history is a line of `results.jsonl` in the folder; the history of an anomaly stays there, with the logs of
its processes. A history that could not be recorded (a wait exceeded its deadline, a client failed) ends the run with 1,
and its files stay too: started again, the run repeats it.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import click

from . import results
from .checker import check
from .guarantees import violations
from .plan import Plan
from .run import SEGMENTS, record


def one(plan: Plan, folder: Path, calls: int) -> results.Result:
    """Record and check a history in an empty folder, which stays only where there is an anomaly."""
    began_s = time.monotonic()
    recorded = record(plan, folder, calls)
    run_s = time.monotonic() - began_s
    began_s = time.monotonic()
    verdicts = check(recorded.lines)
    found = [f"segment {one.segment}: {one.stuck_at}" for one in verdicts if not one.linearizable]
    found += violations(recorded.lines)
    check_s = time.monotonic() - began_s
    found += [f"{recorded.lost} pushes reported as lost"] if recorded.lost else []
    if found:
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in recorded.lines))
    else:
        shutil.rmtree(folder)
    return results.Result(
        plan.number,
        plan.kind.value,
        plan.transport.value,
        plan.exchanges,
        recorded.calls,
        sum(verdict.calls for verdict in verdicts),
        dict(recorded.faults),
        round(run_s, 2),
        round(check_s, 3),
        found,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End all processes first, as after Ctrl-C."""
    raise KeyboardInterrupt


@click.command()
@click.option("--operations", default=10_000_000, show_default=True, help="Operations on segments, at least.")
@click.option("--histories", default=100, show_default=True, help="Histories, at least.")
@click.option("--folder", default=Path(".cache/histories"), type=click.Path(path_type=Path), show_default=True)
@click.option("--minutes", type=float, default=None, help="Begin no history after so many minutes.")
def main(operations: int, histories: int, folder: Path, minutes: float | None) -> None:
    """Record and check histories of real processes until there are enough; print the table of all."""
    signal.signal(signal.SIGTERM, _interrupt)
    began_s = time.monotonic()
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    done = results.read(file)
    while len(done) < histories or sum(result.operations for result in done) < operations:
        if minutes is not None and time.monotonic() - began_s > 60 * minutes:
            break
        plan = Plan.of(len(done))
        own = folder / f"history-{plan.number}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        result = one(plan, own, -(-operations // (histories * SEGMENTS)))
        results.append(file, result)
        done.append(result)
        click.echo(
            f"{plan.number}: {plan}: {result.operations:,} operations in {result.run_s:.1f} s, "
            f"checked in {result.check_s:.1f} s, {len(result.anomalies)} anomalies"
        )
    click.echo(results.table(done))
    sys.exit(any(result.anomalies for result in done))


if __name__ == "__main__":
    main()
