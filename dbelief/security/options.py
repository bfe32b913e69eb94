"""Command-line options that set the identity of a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dbelief.process.terminal.console import cli_errors

from .identity import FOLDER, INSECURE, allow_insecure, load

F = TypeVar("F", bound=Callable[..., Any])


def with_credentials(*roles: str) -> Callable[[F], F]:
    """Add --credentials to a command, for these roles; none: any. They are loaded before the command's body runs."""

    def assume(context: click.Context, parameter: click.Parameter, folder: Path | None) -> None:
        if folder is not None and not context.resilient_parsing:
            with cli_errors():
                load(folder, roles)

    return click.option(
        "--credentials",
        type=click.Path(path_type=Path),
        metavar="DIR",
        envvar=FOLDER,
        show_envvar=True,
        expose_value=False,
        callback=assume,
        help="Folder that `dbelief certs` made for this role: TLS on both sides, and a token, for all calls.",
    )


def may_be_insecure(command: F) -> F:
    """Add --insecure to a command that listens."""

    def note(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        if wanted:
            allow_insecure()

    option: Callable[[F], F] = click.option(
        "--insecure",
        is_flag=True,
        envvar=INSECURE,
        show_envvar=True,
        expose_value=False,
        callback=note,
        help="Without --credentials, listen beyond this machine all the same: anybody may then train, read or stop.",
    )
    return option(command)
