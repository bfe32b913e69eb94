"""How a command speaks and ends: one line for an error, exit codes, signals."""

from __future__ import annotations

import _thread
import faulthandler
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from dbelief.errors import DbeliefError, UserError
from dbelief.process import log

_ADDRESS = re.compile(r"(\[[^\s/\[\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")  # a host that has colons stands in brackets

DEBUG = "DBELIEF_DEBUG"
"""In the environment, so that children hear of it: tracebacks are wanted."""


def announce(line: str) -> None:
    """Say one line on standard error, where logs go, in the form that is wanted there: see `dbelief.process.log`."""
    log.emit(line)


def announce_error(line: str, error: BaseException | None = None) -> None:
    """Say what ends a command: its last line, after or with the traceback of `error` where those are wanted."""
    log.emit(line, "error", error if os.environ.get(DEBUG) else None)


def debug(wanted: bool) -> None:
    """Show tracebacks from now on, in this process and its children, where they are wanted here or by `DBELIEF_DEBUG`.

    A crash of the interpreter itself then shows one too.
    """
    if wanted:
        os.environ[DEBUG] = "1"
    if os.environ.get(DEBUG):
        faulthandler.enable()


def format_error(error: BaseException) -> str:
    """An error in one line; one that is neither ours nor the system's with its type and place.

    Its traceback is shown before, where tracebacks are wanted.
    """
    if os.environ.get(DEBUG):
        log.show_trace(error)
    return _in_words(error)


def _in_words(error: BaseException) -> str:
    if isinstance(error, DbeliefError | OSError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames  # a person's, if any
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


@contextmanager
def cli_errors() -> Iterator[None]:
    """End a command with one line and the right exit code where an error ends it.

    Exit code 2 for what a person can put right, 1 for a failure.
    """
    try:
        yield
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except DbeliefError as error:
        announce_error(_in_words(error), error)
        raise SystemExit(error.exit_code) from None
    except Exception as error:  # nobody foresaw it; the line names its place
        announce_error(_in_words(error), error)
        raise SystemExit(1) from None
    finally:
        log.clear_context()


@contextmanager
def interrupt_event() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event for as long as the block lasts; a second one ends the process.

    Outside the main thread, where Python allows no handlers, the event is simply never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(number: int, frame: FrameType | None) -> None:
        # On a thread of its own: this one may be inside the event's wait, and hold the lock that `set` takes.
        _thread.start_new_thread(event.set, ())
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)  # None: not set by Python


def parse_overrides(items: tuple[str, ...]) -> dict[str, str]:
    """FIELD=VALUE options as a mapping.

    Raises
    ------
    Mistake
        Where one has no "=".
    """
    for item in items:
        if "=" not in item:
            raise UserError(f"--set {item}: wanted FIELD=VALUE, for example strategy.batch=64")
    return dict(item.split("=", 1) for item in items)


def host_and_port(address: str) -> tuple[str, int]:
    """The two halves of `host:port`.

    Raises
    ------
    Mistake
        This is no such address. gRPC would make one of anything: of a missing port 443, of 99999 some other.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) >= 1 << 16:
        raise UserError(f"{address!r} is no address: wanted HOST:PORT, for example 127.0.0.1:7070")
    return found[1], int(found[2])
