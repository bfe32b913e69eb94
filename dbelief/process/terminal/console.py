"""Output and exit of a command: one line for an error, exit codes, signals."""

from __future__ import annotations

import _thread
import faulthandler
import logging
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from dbelief.errors import DbeliefError, UserError
from dbelief.process.log import DEBUG, clear_context

log = logging.getLogger(__name__)

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CAUSES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "SIGHUP, as when its terminal is closed"}
_ADDRESS = re.compile(r"(\[[^\s/\[\]]+\]|[^\s/:\[\]]+):([0-9]{1,5})")  # a host with colons is in brackets


def debug(wanted: bool) -> None:
    """Enable tracebacks in this process and its children, if requested here or by `DBELIEF_DEBUG`.

    A crash of the interpreter itself then shows one too.
    """
    if wanted:
        os.environ[DEBUG] = "1"
    if os.environ.get(DEBUG):
        faulthandler.enable()


def format_error(error: BaseException) -> str:
    """An error in one line; an unexpected error (neither ours nor the system's) with its type and location.

    Its traceback is written first, where tracebacks are enabled.
    """
    log.debug(f"{type(error).__name__}: {error}", exc_info=error)
    return _in_words(error)


def _in_words(error: BaseException) -> str:
    if isinstance(error, DbeliefError | OSError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames  # the user's own code, if any
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


@contextmanager
def cli_errors() -> Iterator[None]:
    """Exit a command with the right exit code on an error; each line of its message is a log line.

    Exit code 2 for errors that the user can correct, 1 for a failure.
    """
    try:
        yield
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except Exception as error:  # where it is unexpected, the line has its location
        if isinstance(error, BrokenPipeError) and _output_closed():
            raise SystemExit(1) from None
        # Within one record the end of a line, as between the problems of a job file, is escaped.
        for number, line in enumerate(_in_words(error).split("\n")):
            log.error(line, exc_info=error if os.environ.get(DEBUG) and number == 0 else None)
        raise SystemExit(error.exit_code if isinstance(error, DbeliefError) else 1) from None
    finally:
        clear_context()


def _output_closed() -> bool:
    """Whether the reader of standard output has ended, as `head` does; nothing further is written then."""
    output = select.poll()  # a flush does not say it again where the write that failed was of the whole buffer
    output.register(sys.stdout.fileno(), 0)
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit reports it again
    return True


class Interrupt(threading.Event):
    """An event that a signal sets; `number`: of the first one."""

    number: int | None = None


def cause_of(event: object) -> str:
    """What has set an event of `interrupt_event`, as a user names it."""
    number = event.number if isinstance(event, Interrupt) else None
    return "a signal" if number is None else _CAUSES.get(number, signal.Signals(number).name)


@contextmanager
def interrupt_event() -> Iterator[Interrupt]:
    """Convert SIGINT, SIGTERM and SIGHUP to an event within the `with` block; a second one ends the process.

    Where SIGHUP is ignored, as under `nohup`, it stays so. A second SIGHUP is ignored: a terminal that is closed sends
    one, and the shell in it another. Outside the main thread, where Python allows no handlers, the event is never set.
    """
    event = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(number: int, frame: FrameType | None) -> None:
        event.number = event.number or number
        # On its own thread: this one may be inside the event's wait, and hold the lock that `set` acquires.
        _thread.start_new_thread(event.set, ())
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)

    taken = [number for number in _STOPS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)  # None: not set by Python


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`.

    Raises
    ------
    UserError
        The address is invalid. gRPC would accept it: port 443 for a missing one, another port for 99999.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UserError(f"{address!r} is no address: wanted HOST:PORT, for example 127.0.0.1:7070")
    if int(found[2]) >= 1 << 16:
        raise UserError(f"{address!r} is no address: port {found[2]} is above 65535")
    return found[1], int(found[2])


def unknown_host(host: str, error: OSError) -> str:
    """Say that a host's name has no address, in a part of a sentence; `error`: a `socket.gaierror`."""
    return f"the host name {host!r} is not known: {error.strerror}"
