"""Paths of a job file: relative to its folder, with environment variables.

They stay unexpanded in the job, because a job travels to other machines and each has its own variables.
"""

import os
import re
from pathlib import Path

from dbelief.errors import JobError
from dbelief.url import Url, is_url, parse_url

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def resolve(text: str, folder: Path) -> Path:
    """Expand ${NAME} in a path of a job file and place it below the job's folder, unless it is absolute.

    Parameters
    ----------
    text : str
        The path as the job file has it.
    folder : Path
        The job's folder (`job.folder`).

    Raises
    ------
    JobError
        A variable is not set, or is empty; or it is a URL, where only a path can be.
    """
    expanded = _expanded(text)
    if is_url(expanded):
        raise JobError(f"{expanded}: is a URL, and a path of this machine is wanted here")
    return folder / expanded


def place(text: str, folder: Path) -> Path | Url:
    """The path, as `resolve` gives it, or the URL; a variable may stand for the beginning of a URL too.

    Raises
    ------
    JobError
        A variable is not set, or is empty.
    UserError
        It is no URL of a store, or has a login.
    """
    expanded = _expanded(text)
    return parse_url(expanded) if is_url(expanded) else folder / expanded


def _expanded(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        found = os.environ.get(name, "")
        if not found:
            state = "empty" if name in os.environ else "not set"
            raise JobError(f"path {text!r} of the job file: the environment variable {name} is {state}")
        return found

    return _VARIABLE.sub(value, text)


def variables(text: str) -> dict[str, str]:
    """Variables of the environment that a job file's text names and this process has."""
    return {name: os.environ[name] for name in _VARIABLE.findall(text) if name in os.environ}


def anchor(text: str, folder: Path) -> str:
    """The same path for a job file that lies elsewhere; a URL, a variable at its beginning, an absolute one stay."""
    return text if text.startswith("${") or is_url(text) else str(folder.absolute() / text)
