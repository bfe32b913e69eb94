"""Log lines of a process on standard error: readable text, or JSON in containers (`DBELIEF_LOG=json`).

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
from datetime import UTC, datetime
from typing import Any

from dbelief.errors import UserError
from dbelief.process.printable import printable, printable_json

FORM = "DBELIEF_LOG"
"""Environment variable of the format, inherited by child processes."""

_ERROR = "Error: "
_LEVELS = {"critical": "error", "notset": "info"}
_LOGIN = re.compile(r"(\w+://)\S*@")
_SECRET = re.compile(r"(?i)(\bbearer\s+|\bauthorization:\s*(?:\w+\s+)?|\b\w*password=)[^\s&,;]+")
_READABLE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+(?: \d+)? of \S+(?:, step [\d,]+)?: (.*)")

_known: dict[str, Any] = {}
_hidden: set[str] = set()


def set_context(*, step: Callable[[], int] | None = None, **fields: str | int) -> None:
    """Add fields to all further lines: `job`, `role`, `id`, and a callback for `step`."""
    _known.update(fields, **({"step": step} if step is not None else {}))


def clear_context() -> None:
    """Remove all context fields: the command has ended."""
    _known.clear()


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
        logging.basicConfig(handlers=[_Others()], level=logging.WARNING, force=True)
        logging.captureWarnings(True)
        threading.excepthook = _died


def emit(message: str, level: str = "info", error: BaseException | None = None, logger: str = "") -> None:
    """Write one line atomically; the traceback of `error` with it: in JSON as a field, else before it."""
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    text = _in_json(message, level, trace, logger) if as_json() else _safe(trace) + printable(_readable(message, level))
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show_trace(error: BaseException) -> None:
    """Show the traceback of an error that is handled elsewhere: in JSON as a line of its own."""
    if as_json():
        emit(f"{type(error).__name__}: {error}", "debug", error)
    else:
        sys.stderr.write(_safe("".join(traceback.format_exception(error))))


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


def _in_json(message: str, level: str, trace: str, logger: str) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record: dict[str, Any] = {"time": time, "level": level, "message": _masked(message), **_facts()}
    record |= {"logger": logger} if logger else {}
    record |= {"trace": _masked(trace)} if trace else {}
    return printable_json(json.dumps(record, ensure_ascii=False))


def _readable(message: str, level: str) -> str:
    facts = _facts()
    head = ""
    if "job" in facts:
        who = " ".join(str(facts[name]) for name in ("role", "id") if name in facts)
        at = f", step {facts['step']:,}" if "step" in facts else ""
        head = f"{datetime.now():%Y-%m-%d %H:%M:%S} {who} of {facts['job']}{at}: "
    return head + _masked((_ERROR if level == "error" else "") + message)


def _facts() -> dict[str, Any]:
    """Context fields with their current values."""
    facts: dict[str, Any] = {name: _known[name] for name in ("job", "role", "id") if name in _known}
    if "step" in _known:
        facts["step"] = _known["step"]()
    return facts


def _safe(text: str) -> str:
    """Text for a terminal: secrets masked, control characters escaped."""
    return printable(_masked(text), lines=True)


def _masked(text: str) -> str:
    """Text without logins in URLs, passwords, bearer tokens, and registered secrets."""
    for secret in _hidden:
        text = text.replace(secret, "***")
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1***@", text))


class _Others(logging.Handler):
    """Handler for the logs and warnings of other libraries."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        level = record.levelname.lower()
        emit(
            record.getMessage(), _LEVELS.get(level, level), record.exc_info[1] if record.exc_info else None, record.name
        )


def _died(ended: threading.ExceptHookArgs) -> None:
    """Log an uncaught error of a thread."""
    name = ended.thread.name if ended.thread is not None else "?"
    emit(f"thread {name} died: {ended.exc_type.__name__}: {ended.exc_value}", "error", ended.exc_value)
