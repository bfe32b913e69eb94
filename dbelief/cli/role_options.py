"""The options that every role's command has: who it is to others, where its numbers are read, what follows its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dbelief.security.options import may_be_insecure, with_credentials

F = TypeVar("F", bound=Callable[..., Any])

sharing_option = click.option(
    "--shared-memory/--no-shared-memory",
    default=True,
    show_default=True,
    help="Between workers and shards of one host, segments go through shared memory; or through TCP as between hosts.",
)
"""Of workers, of shards, and of who starts both."""


def role_options(role: str, waits_for: str) -> Callable[[F], F]:
    """Add --credentials and --insecure, which do their work before the command's body; --metrics and --at-end.

    Parameters
    ----------
    waits_for
        What `--at-end wait` does, for its help.
    """
    options = (
        with_credentials(role),
        may_be_insecure,
        click.option(
            "--metrics", "metrics_listen", default=None, help="Address for Prometheus, host:port; port 0: any free."
        ),
        click.option(
            "--at-end",
            type=click.Choice(["exit", "wait"]),
            default="exit",
            show_default=True,
            help=f"When the job is over: exit, or {waits_for}.",
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
