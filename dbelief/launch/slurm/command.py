"""The command of the guard, which a job under Slurm starts on another node than its coordinator's."""

from __future__ import annotations

import click

from dbelief.process.terminal.console import cli_errors


@click.command("slurm-guard", hidden=True)
@click.argument("job")
@click.argument("node")
def guard_command(job: str, node: str) -> None:
    """Requeue a batch job once Slurm has marked NODE, the first of its nodes, as down."""
    from dbelief.launch.slurm.guard import guard

    with cli_errors():
        guard(job, node)
