"""Settings of a script's membership, which travel from `dbelief worker` to the script in `DBELIEF_*` variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from dbelief.errors import UserError

_COORDINATOR, _NAME, _NUMBER, _THREADS = "DBELIEF_COORDINATOR", "DBELIEF_NAME", "DBELIEF_NUMBER", "DBELIEF_THREADS"
_SHARED_MEMORY, _DIRECT_STREAMS = "DBELIEF_SHARED_MEMORY", "DBELIEF_DIRECT_STREAMS"
_PATIENCE, _FOLDER = "DBELIEF_PATIENCE", "DBELIEF_JOB_FOLDER"

N = TypeVar("N", int, float)
U = TypeVar("U")


@dataclass(frozen=True)
class ScriptSettings:
    """Settings of one script; see the options of `dbelief worker`.

    Attributes
    ----------
    coordinator
        `host:port`; None: not known.
    threads
        None: as the job says.
    patience_s
        Seconds to wait for the coordinator.
    folder
        Where the job's relative paths start on this machine; None: as on the coordinator's.
    """

    coordinator: str | None = None
    name: str | None = None
    number: int | None = None
    threads: int | None = None
    shared_memory: bool = True
    direct_streams: bool = True
    patience_s: float = 60.0
    folder: Path | None = None

    def variables(self) -> dict[str, str]:
        """The variables that `of_environment` reads."""
        values = {
            _COORDINATOR: self.coordinator,
            _NAME: self.name,
            _NUMBER: self.number,
            _THREADS: self.threads,
            _PATIENCE: self.patience_s,
            _FOLDER: self.folder,
        }
        variables = {name: str(value) for name, value in values.items() if value is not None}
        switches = {_SHARED_MEMORY: self.shared_memory, _DIRECT_STREAMS: self.direct_streams}
        return variables | {name: str(int(on)) for name, on in switches.items()}

    @classmethod
    def of_environment(cls) -> Self:
        """The settings of this process.

        Raises
        ------
        UserError
            A variable has no valid value; names it.
        """
        return cls(
            os.environ.get(_COORDINATOR) or None,
            os.environ.get(_NAME) or None,
            _number(_NUMBER, int, None),
            _number(_THREADS, int, None),
            bool(_number(_SHARED_MEMORY, int, 1)),
            bool(_number(_DIRECT_STREAMS, int, 1)),
            _number(_PATIENCE, float, cls.patience_s),
            Path(folder) if (folder := os.environ.get(_FOLDER)) else None,
        )


def _number(name: str, read: Callable[[str], N], usual: U) -> N | U:
    text = os.environ.get(name)
    if not text:
        return usual
    try:
        return read(text)
    except ValueError:
        raise UserError(f"{name} is {text!r}, must be a number") from None
