"""The log of a process: lines on standard error, as readable text, or as JSON in containers (`DBELIEF_LOG=json`).

Every module logs by `logging.getLogger(__name__)`. The loggers of this package and of its programs have one handler,
installed when the package is imported. Level "info" is progress; "warning" is a trouble that the program recovers from
(a retry, a lost peer) or a risk that the user took; "error" is the end of a command or of a thread; "debug" is shown
where `DBELIEF_DEBUG` is set.

A line of JSON is one object: `time` (UTC, ISO 8601), `level` ("debug", "info", "warning" or "error") and `message`;
`job`, `role`, `id` (number of the shard or replica) and `step` once they are known; `trace`, the traceback of an error,
where tracebacks are enabled; `logger`, where another library logs. `step` is a progress counter: samples done at the
coordinator, number of the last push at a worker, pushes of segments at a shard. A readable line begins with the same
fields once the process has joined a job, and is the bare message before.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dbelief.errors import UserError
from dbelief.process.printable import printable, printable_json

FORM = "DBELIEF_LOG"
"""Environment variable of the format, inherited by child processes."""

DEBUG = "DBELIEF_DEBUG"
"""Environment variable, inherited by child processes: show tracebacks, and lines of level "debug"."""

OWN = ("dbelief", "coordinator", "ps_server", "worker")
"""Roots of this project's loggers: a program is `dbelief.worker` where installed, and `worker` in the source tree."""

_ERROR = "Error: "
_LEVELS = {"critical": "error", "notset": "info"}
_LOGIN = re.compile(r"(\w+://)\S*@")
_SECRET = re.compile(r"(?i)(\bbearer\s+|\bauthorization:\s*(?:\w+\s+)?|\b\w*password=)[^\s&,;]+")
_READABLE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+(?: \d+)? of \S+(?:, step [\d,]+)?: (.*)")

_context: dict[str, Any] = {}
_hidden: set[str] = set()
_log = logging.getLogger(__name__)


def set_context(*, step: Callable[[], int] | None = None, **fields: str | int) -> None:
    """Add fields to all further lines: `job`, `role`, `id`, and a callback for `step`."""
    _context.update(fields, **({"step": step} if step is not None else {}))


def clear_context() -> None:
    """Remove all context fields: the command has ended."""
    _context.clear()


def redact(secret: str) -> None:
    """Mask this text in all further lines."""
    if secret:
        _hidden.add(secret)


def as_json() -> bool:
    """Whether lines are JSON."""
    return os.environ.get(FORM) == "json"


def configure() -> None:
    """Check the configured format and, for JSON, also format the logs of other libraries in this process as JSON.

    Raises
    ------
    UserError
        `DBELIEF_LOG` is neither "json" nor "text".
    """
    wanted = os.environ.get(FORM, "")
    if wanted not in ("", "text", "json"):
        raise UserError(f"{FORM}: {wanted!r} is no form of a log: wanted json or text")
    if as_json():
        logging.basicConfig(handlers=[_HANDLER], level=logging.WARNING, force=True)
        logging.captureWarnings(True)
        threading.excepthook = _thread_died


def message_in(line: str) -> str:
    """Message of a line that a process of the system wrote, in either format; another line is returned unchanged."""
    if line.startswith("{"):
        try:
            found = json.loads(line)
            return (_ERROR if found["level"] == "error" else "") + str(found["message"])
        except (ValueError, KeyError, TypeError):
            return line
    found = _READABLE.fullmatch(line)
    return found[1] if found else line


class ContextFilter(logging.Filter):
    """Adds the context fields with their values of now to a record, as its attribute `context`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; every record passes."""
        found = {name: _context[name] for name in ("job", "role", "id", "step") if name in _context}
        record.context = {name: value() if callable(value) else value for name, value in found.items()}
        return True


class RedactionFilter(logging.Filter):
    """Masks logins in URLs, passwords, bearer tokens and registered secrets in a record: in message and traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the secrets; every record passes."""
        record.msg, record.args = _masked(record.getMessage()), None
        error = record.exc_info[1] if record.exc_info else None
        record.exc_text = _masked("".join(traceback.format_exception(error))) if error is not None else None
        return True


class TextFormatter(logging.Formatter):
    """A readable line, with control characters escaped; a traceback stands before it, and alone at level "debug"."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record that has passed the filters."""
        trace = printable(record.exc_text or "", lines=True)
        if trace and record.levelno <= logging.DEBUG:
            return trace.removesuffix("\n")  # it ends with the error
        context, head = record.context, ""  # type: ignore[attr-defined]
        if "job" in context:
            who = " ".join(str(context[name]) for name in ("role", "id") if name in context)
            at = f", step {context['step']:,}" if "step" in context else ""
            head = f"{datetime.now():%Y-%m-%d %H:%M:%S} {who} of {context['job']}{at}: "
        return trace + printable(head + (_ERROR if _level(record) == "error" else "") + record.msg)


class JsonFormatter(logging.Formatter):
    """One JSON object, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record that has passed the filters."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": _level(record), "message": record.msg}
        line |= record.context  # type: ignore[attr-defined]
        line |= {} if record.name.partition(".")[0] in OWN else {"logger": record.name}
        line |= {"trace": record.exc_text} if record.exc_text else {}
        return printable_json(json.dumps(line, ensure_ascii=False))


class StandardErrorHandler(logging.Handler):
    """Writes a record to what is `sys.stderr` now, in one call; both environment variables are read at every record.

    The filters run before the handler's lock is acquired: the callback of `step` may wait for another lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._text, self._json = TextFormatter(), JsonFormatter()
        self.addFilter(lambda record: record.levelno > logging.DEBUG or bool(os.environ.get(DEBUG)))
        self.addFilter(RedactionFilter())
        self.addFilter(ContextFilter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; it is lost where standard error is closed, its terminal is, or its disk is full."""
        text = (self._json if as_json() else self._text).format(record) + "\n"
        if sys.stderr is not None:  # closed at the start
            with suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()


def _level(record: logging.LogRecord) -> str:
    name = record.levelname.lower()
    return _LEVELS.get(name, name)


def _masked(text: str) -> str:
    """Text without logins in URLs, passwords, bearer tokens, and registered secrets."""
    for secret in tuple(_hidden):  # another thread may add one meanwhile
        text = text.replace(secret, "***")
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


def _thread_died(ended: threading.ExceptHookArgs) -> None:
    """Log an uncaught error of a thread."""
    name = ended.thread.name if ended.thread is not None else "?"
    _log.error(f"thread {name} died: {ended.exc_type.__name__}: {ended.exc_value}", exc_info=ended.exc_value)


_HANDLER = StandardErrorHandler()
for _name in OWN:
    _logger = logging.getLogger(_name)
    _logger.setLevel(logging.DEBUG)
    _logger.addHandler(_HANDLER)
    _logger.propagate = False
