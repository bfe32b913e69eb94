"""What `make audit` makes of the answers of services; none is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pip._internal.models.index import PyPI

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


@pytest.mark.parametrize("known", [0, 1])
def test_a_version_without_answer_is_no_clean_audit(known: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(LOCKED, "", lambda versions: _service(versions)[:known]) == 2
    unknown = ["a 1", "a 2", "b 3"] if not known else ["b 3"]
    assert capsys.readouterr().err == f"not audited, {len(unknown)} of 3: {', '.join(unknown)}\n"


def _pip_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    (tmp_path / "pip_audit.py").write_text(f"import json, sys\nprint(json.dumps({{'dependencies': [{answer}]}}))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["audit"])


def test_each_version_is_a_line_for_pip_audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pip_audit(tmp_path, monkeypatch, "*({'name': x[0], 'vulns': [x]} for x in open(sys.argv[-1]).read().split())")
    assert ask({"a": "1", "b": "3"}) == [{"name": "a", "vulns": ["a==1"]}, {"name": "b", "vulns": ["b==3"]}]


def test_a_page_of_a_project_answers_for_its_newest_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pip_audit(tmp_path, monkeypatch, "{'name': 'a', 'skip_reason': 'no page of a version'}")
    monkeypatch.setattr(PyPI, "pypi_url", tmp_path.as_uri())
    finding = {
        "id": "PYSEC-1",
        "aliases": [],
        "fixed_in": ["4"],
        "summary": None,
        "details": "reads",
        "withdrawn": None,
    }
    withdrawn = {**finding, "withdrawn": "2026-01-01T00:00:00Z"}
    for name, version in (("a", "1"), ("b", "4")):
        (tmp_path / name).mkdir()
        page = {"info": {"version": version}, "vulnerabilities": [finding, withdrawn]}
        (tmp_path / name / "json").write_text(json.dumps(page))
    read = {"id": "PYSEC-1", "aliases": [], "fix_versions": ["4"], "description": "reads"}
    assert ask({"a": "1", "b": "3", "c": "5"}) == [{"name": "a", "version": "1", "vulns": [read]}]
