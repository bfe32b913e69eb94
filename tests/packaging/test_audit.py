"""What `make audit` makes of the answers of a service; none is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.packaging.audit import ask, audit, rounds
from deploy.packaging.locked import pins

LOCKED = pins("a==1 ; python_full_version < '3.12' \\\na==2 ; python_full_version >= '3.12' \\\nb==3 \\\n")
FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["4"], "description": "reads beyond an array"}


def _service(versions: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "version": version, "vulns": [FOUND][: name == "b"]} for name, version in versions.items()]


def test_every_version_is_asked_about_once() -> None:
    assert list(rounds(LOCKED)) == [{"a": "1", "b": "3"}, {"a": "2"}]


@pytest.mark.parametrize(("answers", "code"), [("", 1), ("| `CVE-1` | not called |", 0)])
def test_a_finding_has_an_answer_or_a_line(answers: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(LOCKED, answers, _service) == code
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["b 3: PYSEC-1, mended in 4: reads beyond an array"][:code]
    assert last == f"3 packages, {code} findings without an answer in SECURITY.md, {1 - code} with one"


@pytest.mark.parametrize("answer", [[], [{"name": "a", "skip_reason": "not found"}]])
def test_a_service_without_answer_is_no_clean_audit(
    answer: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(LOCKED, "", lambda versions: answer) == 2
    assert capsys.readouterr().err == "not audited: no answer about 3 of 3 packages from the service\n"


def test_each_version_is_a_line_for_pip_audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip_audit.py").write_text(
        "import json, sys\nprint(json.dumps({'dependencies': [{'lines': open(sys.argv[-1]).read().split()}]}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["audit"])
    assert ask({"a": "1", "b": "3"}) == [{"lines": ["a==1", "b==3"]}]
