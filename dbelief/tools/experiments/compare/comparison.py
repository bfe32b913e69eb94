"""A complete comparison: every strategy with every seed, except runs already done; table and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from dbelief.errors import RuntimeFailure, UserError
from dbelief.job import Comparison, ComparisonFile, Trial, nearest
from dbelief.monitor.format import plural
from dbelief.process.atomic_file import write_whole
from dbelief.tools.report.pictures import import_matplotlib

from .record import Record, key_of, read_record, write_record
from .table import in_markdown, rows_of
from .trial import Examiner, run_trial

Run = Callable[[Trial, Comparison, Path, Examiner], Record]


def compare(
    file: Path,
    only: Collection[str] = (),
    seeds: Iterable[str] = (),
    waits: Iterable[str] = (),
    output: Path | None = None,
    log: Callable[[str], None] = print,
    run: Run = run_trial,
) -> list[Path]:
    """Run the missing runs of a comparison file; write records, compare.json, table.md and plots.

    Parameters
    ----------
    only, seeds, waits
        Labels, seeds and added waits to run now; none: all. The table has all completed runs, earlier ones included.
    output
        Default: runs/NAME, below the current directory.
    log
        Called with one line of progress for each run.

    Returns
    -------
    list
        Paths of the files written.

    Raises
    ------
    UserError
        The file is invalid, or it lacks a requested label, seed or wait.
    RuntimeFailure
        The run that the others start from failed; any other failed run is a row with its reason.
    """
    folder = output or Path("runs") / ComparisonFile(file, Path("runs")).comparison.name
    found = ComparisonFile(file, folder / "runs")
    comparison, trials, warm = found.comparison, found.trials(), found.warm_starts()
    wanted = _wanted(trials, comparison, only, set(seeds), set(waits))
    (folder / "records").mkdir(parents=True, exist_ok=True)
    examiner = Examiner()
    examiner.data_of(wanted[0].job)
    for number, trial in enumerate(wanted, 1):
        if _is_done(folder, trial, comparison):
            continue
        if trial.seed in warm:
            _begin(warm[trial.seed], comparison, folder, examiner, run, log)
        record = run(trial, comparison, folder, examiner)
        write_record(folder / "records", trial.name, record)
        log(f"{number}/{len(wanted)} {_line(trial, record)}")
    done = [read_record(folder / "records", trial, comparison) for trial in trials]
    return _write(comparison, folder, [record for record in done if record is not None])


def _wanted(
    trials: list[Trial], comparison: Comparison, only: Collection[str], seeds: set[str], waits: set[str]
) -> list[Trial]:
    for label in only:
        if label not in comparison.strategies:
            near = nearest(label, comparison.strategies)
            hint = f"; did you mean {near}?" if near else ""
            raise UserError(f"--only {label}: the file has no such strategy{hint} ({', '.join(comparison.strategies)})")
    has = {
        "seeds": (seeds, [str(seed) for seed in comparison.seeds]),
        "waits": (waits, [f"{wait:g}" for wait in comparison.compute_wait_s]),
    }
    for option, (chosen, known) in has.items():
        if unknown := sorted(chosen.difference(known)):
            raise UserError(f"--{option} {', '.join(unknown)}: the file has {', '.join(known)}")
    return [
        trial
        for trial in trials
        if (not only or trial.label in only)
        and (not seeds or str(trial.seed) in seeds)
        and (not waits or f"{trial.wait_s:g}" in waits)
    ]


def _is_done(folder: Path, trial: Trial, comparison: Comparison) -> bool:
    record = read_record(folder / "records", trial, comparison)
    return record is not None and not record.failed


def _begin(
    trial: Trial, comparison: Comparison, folder: Path, examiner: Examiner, run: Run, log: Callable[[str], None]
) -> None:
    """Create the result that the other runs start from, where it does not exist yet."""
    if _is_done(folder, trial, comparison):
        return
    record = run(trial, comparison, folder, examiner)
    if record.failed:
        raise RuntimeFailure(f"{trial.name}: {record.failed}")
    write_record(folder / "records", trial.name, record)
    log(_line(trial, record))


def _line(trial: Trial, record: Record) -> str:
    """A run in one line."""
    wait = f", +{trial.wait_s:g} s" if trial.wait_s else ""
    what = f"{trial.label or 'warm start'}, {plural(trial.replicas, 'replica')}{wait}, seed {trial.seed}"
    if record.failed:
        return f"{what}: failed: {record.failed}"
    accuracy = "?" if record.accuracy is None else f"{100 * record.accuracy:.2f} %"
    reached = [
        f"{100 * float(target):g} % after " + (f"{at.seconds:.1f} s, {at.samples:,.0f} samples" if at else "never")
        for target, at in record.reached.items()
    ]
    return f"{what}: {accuracy} after {record.seconds:.1f} s, {record.samples:,} samples; {'; '.join(reached)}"


def _write(comparison: Comparison, folder: Path, records: list[Record]) -> list[Path]:
    rows = rows_of(records, comparison.targets)
    found = {
        "name": comparison.name,
        "targets": [key_of(target) for target in comparison.targets],
        "rows": [row.model_dump() for row in rows],
        "runs": [record.model_dump() for record in records],
    }
    texts = {
        "compare.json": json.dumps(found, indent=1, allow_nan=False) + "\n",
        "table.md": in_markdown(comparison.name, rows, comparison.targets),
    }
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    import_matplotlib()
    from .plots import draw_comparison

    pictures = draw_comparison(records, rows, comparison.targets, folder, comparison.name)
    return [*(folder / name for name in texts), *pictures]
