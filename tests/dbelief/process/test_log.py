"""Log lines on standard error: both forms, their context, masked secrets, and the parser."""

from __future__ import annotations

import errno
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import RuntimeFailure, UserError
from dbelief.process import log
from dbelief.process.log import DEBUG
from dbelief.process.terminal.console import cli_errors, format_error

logger = logging.getLogger("dbelief.somewhere")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(log.FORM, raising=False)
    monkeypatch.setattr(log, "_hidden", set())
    root, hook = logging.getLogger(), threading.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    log.clear_context()
    logging.captureWarnings(False)
    root.handlers[:], threading.excepthook = handlers, hook
    root.setLevel(level)


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log.FORM, "json")


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_log_lines_carry_role_and_step_after_joining(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info("joining")
    log.set_context(role="worker", job="digits", id=3, step=lambda: 1200)
    logger.info("trains")
    logger.error("lost")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "joining"
    assert second[19:] == " worker 3 of digits, step 1,200: trains"
    datetime.fromisoformat(second[:19])
    assert third[19:] == " worker 3 of digits, step 1,200: Error: lost"
    assert [log.message_in(line) for line in (first, second, third)] == ["joining", "trains", "Error: lost"]


@pytest.mark.usefixtures("as_json")
def test_in_json_a_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info('says "this"\nand that')
    log.set_context(role="ps", job="digits", id=0, step=lambda: 7)
    logger.error("lost")
    first, second = said(capsys)
    assert set(first) == {"time", "level", "message"}
    assert first["message"] == 'says "this"\nand that'
    assert datetime.fromisoformat(str(first["time"])).utcoffset() is not None
    del second["time"]
    assert second == {"level": "error", "message": "lost", "job": "digits", "role": "ps", "id": 0, "step": 7}


@pytest.mark.parametrize("program", ["dbelief.worker.process", "worker.process"])
def test_installed_or_not_a_program_has_the_same_lines(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    logging.getLogger(program).debug("asked")
    logging.getLogger(program).warning("%s is lost", "a peer")
    assert capsys.readouterr().err == "a peer is lost\n"
    monkeypatch.setenv(log.FORM, "json")
    monkeypatch.setenv(DEBUG, "1")
    logging.getLogger(program).debug("asked")
    logging.getLogger(program).warning("%s is lost", "a peer")
    assert [(line["level"], line["message"], "logger" in line) for line in said(capsys)] == [
        ("debug", "asked", False),
        ("warning", "a peer is lost", False),
    ]


@pytest.mark.usefixtures("as_json")
@pytest.mark.parametrize("wanted", [False, True])
def test_in_json_a_traceback_is_a_field(
    wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEBUG, "1" if wanted else "")
    with pytest.raises(SystemExit), cli_errors():
        raise RuntimeFailure("shard 1 is gone")
    (line,) = said(capsys)
    assert (line["level"], line["message"]) == ("error", "shard 1 is gone")
    assert str(line.get("trace", "")).startswith("Traceback (most recent call last):") == wanted
    assert format_error(RuntimeFailure("it is not")) == "it is not"
    assert [(one["level"], "trace" in one) for one in said(capsys)] == [("debug", True)] * wanted


def test_context_reaches_the_error_line_and_is_then_cleared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def joins_and_fails() -> None:
        log.set_context(role="ps", job="digits", id=1)
        raise RuntimeFailure("gone")

    with pytest.raises(SystemExit), cli_errors():
        joins_and_fails()
    logger.info("another")
    first, second = capsys.readouterr().err.splitlines()
    assert first[19:] == " ps 1 of digits: Error: gone"
    assert second == "another"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "text",
    [
        "registry redis://me:sec-ret@host:1 is away",
        "redis://:sec-ret/with/slashes@host",
        "https://sec-ret@host/path",
        "unix:///a?db=1&password=sec-ret",
        "Authorization: Bearer sec-ret",
        "authorization: sec-ret",
        "sent bearer sec-ret, refused",
        "nobody knows sec-ret2 here",
    ],
)
def test_a_line_never_holds_a_secret(
    text: str, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.FORM, form)
    monkeypatch.setenv(DEBUG, "1")
    log.redact("sec-ret2")
    with pytest.raises(SystemExit), cli_errors():
        raise RuntimeFailure(text)
    format_error(RuntimeFailure(text))
    logger.info(text)
    told_all = capsys.readouterr().err
    assert "***" in told_all
    assert "sec-ret" not in told_all


def test_another_thread_may_add_a_secret_while_a_line_is_masked() -> None:
    class Meanwhile(str):
        def replace(self, *_: object) -> str:
            log.redact("another")
            return str(self)

    log.redact("sec-ret")
    assert log._masked(Meanwhile("a line")) == "a line"


def test_an_unknown_form_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log.FORM, "xml")
    with pytest.raises(UserError, match=r"^DBELIEF_LOG: 'xml' is no form of a log: wanted json or text$"):
        log.configure()


@pytest.mark.usefixtures("as_json")
@pytest.mark.filterwarnings("default")
def test_all_json_output_uses_one_formatter(capsys: pytest.CaptureFixture[str]) -> None:
    def dies() -> None:
        raise OSError("no more threads")

    log.configure()
    logging.getLogger("another.package").warning("%s is old", "it")
    warnings.warn("do not", stacklevel=1)
    thread = threading.Thread(target=dies, name="beat")
    thread.start()
    thread.join()
    first, second, third = said(capsys)
    assert (first["level"], first["message"], first["logger"]) == ("warning", "it is old", "another.package")
    assert second["logger"] == "py.warnings"
    assert "UserWarning: do not" in str(second["message"])
    assert (third["level"], third["message"]) == ("error", "thread beat died: OSError: no more threads")
    assert "in dies" in str(third["trace"])


@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))
def test_another_programs_line_is_its_own_message(line: str) -> None:
    assert log.message_in(line) == line


@given(st.text(), st.sampled_from(["info", "error"]))
def test_json_lines_round_trip(message: str, level: str) -> None:
    record = logging.LogRecord("dbelief", logging.getLevelNamesMapping()[level.upper()], "", 0, message, None, None)
    assert all(one.filter(record) for one in (log.RedactionFilter(), log.ContextFilter()))
    line = log.JsonFormatter().format(record)
    assert "\n" not in line
    assert log.message_in(line) == ("Error: " if level == "error" else "") + log._masked(message)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("form", "argument", "message"),
    [("json", "trian", "No such command 'trian'."), ("xml", "zoo", "DBELIEF_LOG: 'xml' is no form of a log")],
)
def test_a_wrong_command_line_is_said_in_the_wanted_form(
    form: str, argument: str, message: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-m", "dbelief", argument]
    ended = subprocess.run(
        command, cwd=tmp_path, env={log.FORM: form}, capture_output=True, text=True, timeout=60, check=False
    )
    (line,) = ended.stderr.splitlines()
    assert log.message_in(line).startswith(f"Error: {message}")
    assert line.startswith("{") == (form == "json")
    assert ended.returncode == 2


class Gone:
    """Standard error of a terminal that is closed, or of a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("stream", [None, Gone()], ids=["closed", "gone"])
def test_a_line_that_cannot_be_written_ends_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    logger.warning("nobody reads this")
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger.warning("the next line is written")
    assert "the next line is written" in terminal.getvalue()
