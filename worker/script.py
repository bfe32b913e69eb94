"""A worker that becomes a script: settings and credentials of `dbelief worker` as variables, and its command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dbelief.errors import UserError
from dbelief.script.settings import ScriptSettings
from dbelief.security import identity


def run_script(script: Sequence[str], settings: ScriptSettings) -> NoReturn:
    """Replace this process by a script: a Python file, run by this Python, or any command.

    Of its environment only `DBELIEF_*` variables change.

    Raises
    ------
    UserError
        Its program cannot be run, or there are no credentials where DBELIEF_CREDENTIALS says.
    """
    command = list(script[1:] if script[0] == "--" else script)
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    try:
        os.execvpe(command[0], command, os.environ | identity.variables() | settings.variables())
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run: {error.strerror or error}") from error
