"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("ps_server", "worker", "coordinator")
PACKAGES = ("dbelief", *PROGRAMS)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LONGEST = 500
REASON = "One file because"
WRITTEN = {".py", ".pyi", ".proto", ".md", ".yaml", ".toml", ".sh", ""}
"""Kinds of files that people write; "" is Makefile, Dockerfile and .ci/run."""


def _sources() -> Iterator[Path]:
    """Python files of the packages that people wrote."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.stem)


def _where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_long_files_say_why() -> None:
    long = {path: path.read_text() for path in _sources() if len(path.read_text().splitlines()) > LONGEST}
    silent = [_where(path) for path, text in long.items() if REASON not in (ast.get_docstring(ast.parse(text)) or "")]
    assert silent == [], f"more than {LONGEST} lines: one idea each, or a docstring that says {REASON!r} ..."


def test_paths_in_documents_exist() -> None:
    documents = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    top = "|".join((*PACKAGES, "protos", "tests", "benchmarks", "docs", "deploy"))
    path = re.compile(rf"(?<![\w./{{-])((?:{top})/[\w./-]*\w)")
    module = re.compile(rf"`((?:dbelief\.)?(?:{'|'.join(PACKAGES)})\.[\w.]+)`")
    missing = []
    for document in documents:
        text = document.read_text()
        named = [
            found for found in path.findall(text) if not any((at / found).exists() for at in (ROOT, document.parent))
        ]
        named += [
            found for found in module.findall(text) if not found.endswith(".dbelief") and not _is_name(found)
        ]  # a certificate's name
        missing += [f"{_where(document)}: {found}" for found in named]
    assert len(documents) > 20
    assert missing == []


def _is_name(dotted: str) -> bool:
    """Whether a dotted name is a module, or stands in the module that its front names."""
    parts = dotted.removeprefix("dbelief.").split(".") if dotted.split(".")[1] in PROGRAMS else dotted.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                return all(re.search(rf"\b{name}\b", file.read_text()) for name in parts[count:])
    return False


def test_public_classes_have_names_of_their_own() -> None:
    """But a section of a job file and what it builds may share a word, the programs' options, and torch's names."""
    places: dict[str, set[str]] = {}
    for path in _sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(_where(path))
    places["Options"] -= {f"{program}/process.py" for program in PROGRAMS}
    places["Embedding"] -= {"dbelief/torch/embedding.py"}  # a script has it in the place of torch's
    twice = {}
    for name, files in places.items():
        sections = {file for file in files if file.startswith("dbelief/job/")}
        if len(files - sections) > 1 or len(sections) > 1:
            twice[name] = files
    assert len(places) > 500, "so few classes cannot be right"
    assert twice == {}


def test_programs_know_no_name_of_their_own() -> None:
    """A program's folder is `worker` in the tree and `dbelief.worker` installed: no import may spell either."""
    own = {*PROGRAMS, *(f"dbelief.{program}" for program in PROGRAMS)}
    spelled = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            prefixes = {name.rsplit(".", cut)[0] for name in names for cut in range(name.count(".") + 1)}
            if own & prefixes:
                spelled.append(f"{_where(path)}:{node.lineno}")
    assert spelled == []


def test_every_program_is_known_to_every_tool() -> None:
    found = {path.parent.name for path in ROOT.glob("*/command.py")}
    tool, setuptools = PROJECT["tool"], PROJECT["tool"]["setuptools"]
    commands = PROJECT["project"]["entry-points"]["dbelief.commands"].values()
    assert found == set(PROGRAMS)
    assert set(commands) == {f"dbelief.{program}.command:command" for program in (*PROGRAMS, "tools.bench")}
    homes = {f"dbelief.{program}": program for program in PROGRAMS}
    assert setuptools["package-dir"] == {**homes, "dbelief.pages": "docs"}
    assert set(tool["importlinter"]["root_packages"]) == set(PACKAGES)
    assert set(tool["mypy"]["files"]) >= set(PACKAGES)
    assert set(tool["ruff"]["lint"]["isort"]["known-first-party"]) == set(PACKAGES)


def test_no_file_names_a_machine() -> None:
    """No path below a person's folder, nor below the folder that this tree happens to lie in."""
    here = [re.escape(str(ROOT))] * (len(ROOT.parts) > 2)
    machine = re.compile("|".join([r"/(home|root|Users)/\w", *here]))
    folders = (*PACKAGES, "protos", "tests", "benchmarks", "examples", "docs", ".ci")
    files = [*(path for folder in folders for path in (ROOT / folder).rglob("*")), *ROOT.iterdir()]
    written = [path for path in files if path.is_file() and path.suffix in WRITTEN and "__pycache__" not in path.parts]
    assert len(written) > 100, "so few files cannot be right"
    assert [_where(path) for path in written if machine.search(path.read_text())] == []


def test_what_is_skipped_without_an_extra_is_marked() -> None:
    """`make test-extras` runs what is marked, and `make test` skips it."""
    skips = re.compile(r"importorskip\(\s*\"(torch|accelerate|tensorboard|mlflow|s3fs|moto)|skipif\(bool\(MISSING\)")
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    skipping = {path for path, text in tests.items() if skips.search(text)}
    assert len(skipping) > 10, "so few files cannot be right"
    marked = {path for path in skipping if re.search(r"mark\.(torch|trackers|storage)\b", tests[path])}
    assert skipping - marked == set()


def test_every_dependency_is_explained() -> None:
    project = PROJECT["project"]
    groups = (*project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values())
    needed = sum(groups, project["dependencies"])
    names = {re.split(r"[<>=;\[ ]", line)[0] for line in needed}
    explained = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(names)


def test_generated_code_runs_on_the_oldest_versions_allowed() -> None:
    """Code made by protoc refuses a runtime older than its compiler."""
    lowest = dict(line.split(">=") for line in PROJECT["project"]["dependencies"] if ">=" in line and ";" not in line)
    wire = ROOT / "dbelief" / "rpc" / "pb"
    (protobuf,) = {
        re.search(r"Protobuf Python Version: ([\d.]+)", path.read_text())[1]  # type: ignore[index]
        for path in wire.glob("*_pb2.py")
    }
    (grpc,) = {
        re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text())[1]  # type: ignore[index]
        for path in wire.glob("*_pb2_grpc.py")
    }
    assert _version(lowest["protobuf"]) >= _version(protobuf)
    assert _version(lowest["grpcio"]) >= _version(grpc)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
