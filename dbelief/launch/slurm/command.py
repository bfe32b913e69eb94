"""`dbelief slurm`, which a batch script calls, and the guard that it starts on another node."""

from __future__ import annotations

from pathlib import Path

import click

from dbelief.process.terminal.completion import job_files
from dbelief.process.terminal.console import cli_errors
from dbelief.process.terminal.overrides import parse_overrides, set_option


@click.command("slurm")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@set_option(envvar="DBELIEF_SET", show_envvar=True)
@click.option(
    "--shards",
    type=click.IntRange(1),
    envvar="DBELIEF_SHARDS",
    show_envvar=True,
    help="Shards; default: the job's.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    envvar="DBELIEF_WORKERS",
    show_envvar=True,
    help="Workers; default: one for each task that coordinator and shards leave.",
)
@click.option(
    "--resume",
    is_flag=True,
    envvar="DBELIEF_RESUME",
    show_envvar=True,
    help="Resume from the newest valid snapshot set of the run folder; a requeued job does so by itself.",
)
def slurm_command(
    job_file: Path, overrides: tuple[str, ...], shards: int | None, workers: int | None, resume: bool
) -> None:
    """Run a complete job on the nodes of a Slurm batch job; called by the batch script: see deploy/slurm."""
    from dbelief.launch.slurm.launch import run_batch

    with cli_errors():
        sets = parse_overrides((*overrides, *[f"shards={shards}"] * (shards is not None)))
        code = run_batch(job_file, sets, workers, resume)
    raise SystemExit(code)


@click.command("slurm-guard", hidden=True)
@click.argument("job")
@click.argument("node")
def guard_command(job: str, node: str) -> None:
    """Requeue a batch job once Slurm has marked NODE, the first of its nodes, as down."""
    from dbelief.launch.slurm.guard import guard

    with cli_errors():
        guard(job, node)
