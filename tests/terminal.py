"""What a terminal shows."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def shown(what: RenderableType, width: int = 100, height: int | None = None) -> list[str]:
    """Lines, without blanks at their ends."""
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]
