"""Options of every role's command: its credentials, its metrics address, and its behaviour at the job's end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dbelief.rpc import proxy
from dbelief.security.options import may_be_insecure, with_credentials

F = TypeVar("F", bound=Callable[..., Any])

sharing_option = click.option(
    "--shared-memory/--no-shared-memory",
    default=True,
    show_default=True,
    help="Between workers and shards of one host, segments go through shared memory; or through TCP as between hosts.",
)
"""Option of workers, of shards, and of commands that start both."""

direct_option = click.option(
    "--direct-streams/--no-direct-streams",
    default=True,
    show_default=True,
    envvar="DBELIEF_DIRECT_STREAMS",
    show_envvar=True,
    help="Small messages go over TCP connections of their own, to ports that a shard opens when asked; or over gRPC.",
)
"""Option of workers and of shards: a direct stream needs both."""


coordinator_option = click.option(
    "--coordinator", required=True, metavar="HOST:PORT", help="Where the job's coordinator listens."
)
"""Option of workers and of shards."""


def _through_proxy(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        proxy.enable()


proxy_option = click.option(
    "--proxy",
    is_flag=True,
    envvar=proxy.ENABLED,
    show_envvar=True,
    expose_value=False,
    callback=_through_proxy,
    help="Connect through the proxy of grpc_proxy, https_proxy or http_proxy, but to hosts of no_proxy; else directly.",
)
"""Option of roles, and of commands that call a coordinator."""


def member_options(member: str, log: str) -> Callable[[F], F]:
    """Add --record, --number, --name and --patience of a shard or worker.

    Parameters
    ----------
    log
        The log that --record writes.
    """
    options = (
        click.option(
            "--record",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            help=f"Folder for the log {log}.",
        ),
        click.option(
            "--number", type=click.IntRange(0), default=None, help=f"The {member} number to ask for; default: any free."
        ),
        click.option(
            "--name",
            default=None,
            help=f"Name of this {member}, the same at each start: its earlier incarnation ends.",
        ),
        click.option(
            "--patience",
            type=click.FloatRange(0),
            default=60.0,
            show_default=True,
            help="Seconds to wait for the coordinator.",
        ),
    )
    return adding(options)


def role_options(role: str, waits_for: str) -> Callable[[F], F]:
    """Add --credentials, --insecure and --proxy, which take effect before the command's body; --metrics and --at-end.

    Parameters
    ----------
    waits_for
        Help text for `--at-end wait`.
    """
    options = (
        with_credentials(role),
        may_be_insecure,
        proxy_option,
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
    return adding(options)


def adding(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """Decorator that adds options to a command, in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)
