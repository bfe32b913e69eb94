"""Settings of a script's membership, which travel from `dbelief worker` to the script in `DBELIEF_*` variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from dbelief.errors import UserError

_COORDINATOR, _NAME, _NUMBER, _THREADS = "DBELIEF_COORDINATOR", "DBELIEF_NAME", "DBELIEF_NUMBER", "DBELIEF_THREADS"
_SHARED_MEMORY, _DIRECT_STREAMS = "DBELIEF_SHARED_MEMORY", "DBELIEF_DIRECT_STREAMS"


@dataclass(frozen=True)
class ScriptSettings:
    """Settings of one script; see the options of `dbelief worker`.

    Attributes
    ----------
    coordinator
        `host:port`; None: not known.
    threads
        None: as the job says.
    """

    coordinator: str | None = None
    name: str | None = None
    number: int | None = None
    threads: int | None = None
    shared_memory: bool = True
    direct_streams: bool = True

    def variables(self) -> dict[str, str]:
        """The variables that `of_environment` reads."""
        texts = {_COORDINATOR: self.coordinator, _NAME: self.name, _NUMBER: self.number, _THREADS: self.threads}
        variables = {name: str(value) for name, value in texts.items() if value is not None}
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
            _number(_NUMBER),
            _number(_THREADS),
            bool(_number(_SHARED_MEMORY, 1)),
            bool(_number(_DIRECT_STREAMS, 1)),
        )


def _number(name: str, usual: int | None = None) -> int | None:
    text = os.environ.get(name)
    if not text:
        return usual
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} is {text!r}, must be a number") from None
