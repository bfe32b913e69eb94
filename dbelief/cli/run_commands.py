"""Commands on the folder of a run: evaluation, predictions, export, report, trackers."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Literal

import click

from dbelief.errors import UserError
from dbelief.process.terminal.completion import RunArgument, run_folders
from dbelief.process.terminal.console import cli_errors
from dbelief.url import Url


@click.command("evaluate")
@click.argument("run", type=RunArgument(), shell_complete=run_folders)
@click.option(
    "--on",
    "split",
    type=click.Choice(["validation", "test"]),
    default="test",
    show_default=True,
    help="Set to evaluate on.",
)
def evaluate_command(run: Path | Url, split: str) -> None:
    """Evaluate the model of a run folder on its job's data."""
    from dbelief.cli.inspect_run import evaluate_run
    from dbelief.rundir.stored.copies import local_copy

    with cli_errors(), local_copy(run, parameters=True) as folder:
        print(json.dumps(evaluate_run(folder, split)))


@click.command("predict")
@click.argument("run", type=RunArgument(), shell_complete=run_folders)
@click.argument("file", type=RunArgument())
@click.option("--outputs", is_flag=True, help="Print the outputs of the last layer too, with a first row of names.")
def predict_command(run: Path | Url, file: Path | Url, outputs: bool) -> None:
    """Print the class of each sample in FILE, or its numbers where the job has no classes, as CSV.

    RUN is a run folder, its URL, or a model file. FILE is like the job's data: CSV, LIBSVM, Parquet, an IDX file of
    images, an image or a folder of images, lines of text, bags of keys, or a NumPy file, or the URL of one; targets may
    be missing.
    """
    from dbelief.cli.inspect_run import predict
    from dbelief.rundir.stored.copies import local_copy

    with cli_errors(), local_copy(run, parameters=True) as folder:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows(predict(folder, file, outputs))


@click.command("export")
@click.argument("run", type=RunArgument(), shell_complete=run_folders)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "npz", "parquet"]),
    default="safetensors",
    show_default=True,
    help="Format of the file: npz of a model, parquet of rows.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file; default: the job's name, in the current folder.",
)
@click.option(
    "--vector",
    metavar="NAME",
    help="Of the newest snapshot set: w (newest parameters), best (of the best evaluation), or another that it holds; "
    "default: the job's result.",
)
@click.option(
    "--tables",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="In place of the model, write the rows of the job's tables into this folder, a file for each: those of the "
    "newest snapshot set.",
)
def export_command(
    run: Path | Url,
    form: Literal["safetensors", "npz", "parquet"],
    output: Path | None,
    vector: str | None,
    tables: Path | None,
) -> None:
    """Export a run's model to a file: the final model, or that of the newest snapshot set if the run did not finish."""
    with cli_errors():
        if tables is not None:
            if form == "npz" or output is not None or vector is not None:
                raise UserError(
                    "--tables FOLDER goes with --format safetensors or parquet, and no --output and --vector"
                )
            _export_tables(run, form, tables)
        elif form == "parquet":
            raise UserError("--format parquet is one of rows: give --tables FOLDER")
        else:
            _export_model(run, form, output, vector)


def _export_tables(run: Path | Url, form: Literal["safetensors", "parquet"], into: Path) -> None:
    from dbelief.rundir.stored.copies import local_copy
    from dbelief.sparse.saved.export import export_tables

    with local_copy(run, sets=True) as folder:
        for line in export_tables(folder, form, into):
            print(line.replace(str(folder), str(run)))


def _export_model(
    run: Path | Url, form: Literal["safetensors", "npz"], output: Path | None, vector: str | None
) -> None:
    from dbelief.rundir.export import export_run
    from dbelief.rundir.stored.copies import local_copy

    with local_copy(run, parameters=True, sets=vector is not None) as folder:
        print(export_run(folder, form, output, vector).replace(str(folder), str(run)))


@click.command("report")
@click.argument("run", type=RunArgument(), shell_complete=run_folders)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the pictures; default: RUN, of a URL the current one.",
)
@click.option(
    "--images",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="NPZ",
    help="Labelled images, an .npz file: how well an autoencoder's best neuron separates them.",
)
def report_command(run: Path | Url, output: Path | None, images: Path | None) -> None:
    """Report how the run of a folder went, or its progress so far, and draw its plots."""
    from dbelief.cli.inspect_run import report_run
    from dbelief.rundir.stored.copies import local_copy

    with cli_errors(), local_copy(run, parameters=True) as folder:
        report_run(folder, output or (run if isinstance(run, Path) else Path.cwd()), images)


@click.command("track")
@click.argument("run", type=RunArgument(), shell_complete=run_folders)
@click.option(
    "--to",
    "names",
    multiple=True,
    type=click.Choice(["tensorboard", "mlflow"]),
    help="A tracker; may be repeated. Default: those of the job file.",
)
def track_command(run: Path | Url, names: tuple[str, ...]) -> None:
    """Give the curves, pictures and model of a run to trackers of experiments, until it ends.

    A coordinator does this by itself where the job file has `track`.
    """
    from dbelief.process.clock import SystemClock
    from dbelief.process.terminal.console import interrupt_event
    from dbelief.rundir.stored.copies import local_copy
    from dbelief.rundir.summary import has_ended
    from dbelief.tools.track.follow import follow

    with cli_errors(), interrupt_event() as interrupted, local_copy(run, parameters=True) as folder:
        if folder != run and not has_ended(folder):
            raise UserError(f"{run}: has not ended; while it runs, `track` in its job file gives it to trackers")
        follow(folder, names, SystemClock(), interrupted)


COMMANDS = (evaluate_command, predict_command, export_command, report_command, track_command)
