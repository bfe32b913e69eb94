"""Options of every role's command: its credentials, its metrics address, and its behaviour at the job's end."""

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
"""Option of workers, of shards, and of commands that start both."""


def role_options(role: str, waits_for: str) -> Callable[[F], F]:
    """Add --credentials and --insecure, which take effect before the command's body; --metrics and --at-end.

    Parameters
    ----------
    waits_for
        Help text for `--at-end wait`.
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
