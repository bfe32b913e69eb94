"""How a command speaks and ends: one line for an error, exit codes, signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from dbelief.errors import DbeliefError, Mistake


def announce(line: str) -> None:
    """Say one line on standard error, where logs go."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def exits_cleanly() -> Iterator[None]:
    """End a command with one line and the right exit code where one of our errors ends it.

    Exit code 2 for what a person can put right, 1 for a failure. `DBELIEF_DEBUG=1` shows the traceback.
    """
    try:
        yield
    except DbeliefError as error:
        if os.environ.get("DBELIEF_DEBUG"):
            raise
        announce(f"Error: {error}")
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None


@contextmanager
def on_signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event for as long as the block lasts; a second one ends the process.

    Outside the main thread, where Python allows no handlers, the event is simply never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)  # None: not set by Python


def pairs(items: tuple[str, ...]) -> dict[str, str]:
    """FIELD=VALUE options as a mapping.

    Raises
    ------
    Mistake
        Where one has no "=".
    """
    for item in items:
        if "=" not in item:
            raise Mistake(f"--set {item}: wanted FIELD=VALUE, for example strategy.batch=64")
    return dict(item.split("=", 1) for item in items)


def serve_metrics(serve: Callable[[str, int], int], listen: str | None) -> None:
    """Serve a process's metrics (`serve` is `Metrics.serve`) at `host:port` and say where; nothing for None.

    Raises
    ------
    Mistake
        Where this is no address, or it cannot be listened on.
    """
    if listen is None:
        return
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise Mistake(f"--metrics {listen}: wanted HOST:PORT, for example 127.0.0.1:9100")
    announce(f"metrics on http://{host}:{serve(host, int(port))}/metrics")


def write_address(path: Path, address: str) -> None:
    """Tell where this process listens, in a file that appears whole."""
    temporary = path.with_suffix(".writing")
    temporary.write_text(address)
    temporary.rename(path)
