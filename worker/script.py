"""A worker that becomes a script: the settings of `dbelief worker` as variables, and the script's command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NoReturn

from dbelief.errors import UserError
from dbelief.script.settings import ScriptSettings


def run_script(
    script: Sequence[str],
    coordinator: str,
    name: str | None = None,
    number: int | None = None,
    threads: int | None = None,
    shared_memory: bool = True,
    direct_streams: bool = True,
    **others: Any,
) -> NoReturn:
    """Replace this process by a script. Of its environment only `DBELIEF_*` variables change.

    Raises
    ------
    UserError
        Its program cannot be run.
    """
    settings = ScriptSettings(coordinator, name, number, threads, shared_memory, direct_streams)
    command = list(script[1:] if script[0] == "--" else script)
    try:
        os.execvpe(command[0], command, os.environ | settings.variables())
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run: {error.strerror or error}") from error
