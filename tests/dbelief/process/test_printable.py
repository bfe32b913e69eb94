import io
import logging

import pytest
from rich.console import Console, RenderableType

from dbelief.monitor.live_view import head, line
from dbelief.monitor.status_table import facts_of, overview
from dbelief.monitor.top import whole
from dbelief.process import log
from dbelief.process.printable import printable
from tests.dbelief.monitor.test_status_table import STATUS as PLAIN

EVIL = "\x1b]0;owned\x07\x1b[2Jx\x9b31m\u202ey\r\n\x7f"
MEANT = r"\x1b]0;owned\x07\x1b[2Jx\x9b31m\u202ey\x0d\x0a\x7f"
STATUS = {
    **PLAIN,
    "job": f"job {EVIL}",
    "reason": f"reason {EVIL}",
    "run_folder": f"/runs/{EVIL}",
    "members": [{**PLAIN["members"][1], "name": f"name {EVIL}", "samples_per_s": 1.0}],
}


def shown(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system=None, width=400).print(what)
    return out.getvalue()


@pytest.mark.parametrize("text", ["", "host:17", "Zürich 1 µs", "日本", "a b"])
def test_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_control_characters_are_escaped() -> None:
    assert printable(EVIL) == MEANT
    assert printable("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"
    assert printable("\u2028\u2066") == r"\u2028\u2066"


@pytest.mark.parametrize("what", ["status", "top", "head", "line", "facts"])
def test_no_display_carries_a_members_escapes(what: str) -> None:
    text = {
        "status": lambda: shown(overview(STATUS)),
        "top": lambda: shown(whole(STATUS)),
        "head": lambda: shown(head(STATUS)),
        "line": lambda: line(STATUS),
        "facts": lambda: shown(facts_of(EVIL, [("ended", EVIL)])),
    }[what]()
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r", "\x7f"} & set(text)
    assert r"\x1b]0;owned\x07\x1b[2Jx\x9b31m\u202ey" in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_of_a_log_carries_escapes(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.FORM, form)
    logging.getLogger("dbelief").error(f"replica 1 {EVIL} died")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r", "\x7f"} & set(said)
    assert "owned" in said
