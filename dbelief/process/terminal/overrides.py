"""The option `--set FIELD=VALUE` of commands that read a job file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dbelief.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def set_option(**attributes: Any) -> Callable[[F], F]:
    """Add the option to a command, as its argument `overrides`; `attributes` as for `click.option`."""
    usual = {"metavar": "FIELD=VALUE", "help": "Replace a field of the job file."}
    return click.option("--set", "overrides", multiple=True, **{**usual, **attributes})


def parse_overrides(items: tuple[str, ...]) -> dict[str, str]:
    """FIELD=VALUE options as a mapping.

    Raises
    ------
    UserError
        Where one has no "=".
    """
    for item in items:
        if "=" not in item:
            raise UserError(f"--set {item}: wanted FIELD=VALUE, for example strategy.batch=64")
    return dict(item.split("=", 1) for item in items)
