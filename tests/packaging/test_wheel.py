"""pip installs `dbelief` and nothing beside it: the tree's own bytes, and every module imports.

Two traps are meant: a new subpackage that is missing from `packages`, and a program that imports itself by the name
of its folder. Nothing is downloaded: the fresh environment looks for dependencies where this one has them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ps_server", "worker", "coordinator")
COMMANDS = {"ps", "worker", "coordinator", "train", "status", "evaluate", "export", "job"}
BUILD = "import sys; sys.path.insert(0, 'deploy/packaging'); import backend; print(backend.build_{}({!r}))"
EXTRAS = (
    "dbelief.integrations.",
    "dbelief.tools.track.mlflow_sink",
    "dbelief.tools.track.tensorboard_sink",
    "dbelief.torch",
)
"""Modules, and packages, that need an extra."""
IMPORT_ALL = f"""
import importlib, pkgutil, sys, dbelief
found = pkgutil.walk_packages(dbelief.__path__, "dbelief.", lambda name: None)
names = [m.name for m in found if not m.name.endswith("__main__") and not m.name.startswith({EXTRAS})]
for name in names:
    importlib.import_module(name)
print(*names)
print(*sorted({{"ps_server", "worker", "coordinator"}} & set(sys.modules)))
"""

pytestmark = pytest.mark.processes


def _packaged() -> dict[str, bytes]:
    """Files of the tree by their name in the wheel."""
    folders = {"dbelief": ROOT / "dbelief", **{f"dbelief/{name}": ROOT / name for name in PROGRAMS}}
    code = {
        f"{inside}/{path.relative_to(folder).as_posix()}": path
        for inside, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    pages = {
        f"dbelief/pages/{path.relative_to(ROOT / 'docs').as_posix()}": path
        for path in (ROOT / "docs" / "__init__.py", *ROOT.glob("docs/how-to/*.md"), *ROOT.glob("docs/explanation/*.md"))
    }
    return {name: path.read_bytes() for name, path in {**code, **pages}.items()}


def _run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed; no environment variable of Python's may help it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _copy(folder: Path) -> Path:
    """A copy of the tree in a folder, of what a build may read and of tests, which it must leave out."""
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_words.py", folder / "tests")
    for name in ("dbelief", *PROGRAMS, "deploy/packaging", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _build(kind: str, tree: Path) -> Path:
    """The archive (sdist, wheel) that the backend builds from a tree."""
    (tree / "dist").mkdir(exist_ok=True)
    name = _run(sys.executable, "-W", "ignore", "-c", BUILD.format(kind, "dist"), cwd=tree).splitlines()[-1]
    return tree / "dist" / name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that the tree stays as it is."""
    return _build("wheel", _copy(tmp_path_factory.mktemp("tree")))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it, and this one's dependencies behind it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    scheme = {"base": str(folder), "platbase": str(folder)}
    here, site = sysconfig.get_path("purelib"), Path(sysconfig.get_path("purelib", "venv", scheme))
    # A folder named in a .pth file is searched after site-packages, and its own .pth files are not read: our
    # editable install, which is one of them, stays out of it.
    (site / "dependencies.pth").write_text(here)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    _run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    return folder


def test_wheel_holds_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        expected = _packaged()
        assert names == set(expected)
        assert [name for name in names if archive.read(name) != expected[name]] == []


@pytest.mark.long
def test_archives_have_the_same_bytes_wherever_and_whenever_they_are_built(tmp_path: Path) -> None:
    first, second, unpacked = (tmp_path / name for name in ("first", "another folder", "unpacked"))
    for folder in (first, second):
        folder.mkdir()
        _copy(folder)
    for path in second.rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
        path.chmod(0o700)
    stale = second / "build" / "lib" / "dbelief" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("a module of an earlier build")
    before = os.umask(0o077)
    try:
        others = [_build("sdist", second), _build("wheel", second)]
    finally:
        os.umask(before)
    sdist, wheel = _build("sdist", first), _build("wheel", first)
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    assert not (tree / "tests").exists()
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (sdist, wheel, *others, _build("wheel", tree))]
    assert digests == [*digests[:2], *digests[:2], digests[1]], "sdist, wheel, both again, the wheel from the sdist"
    check = (sys.executable, "-m", "twine", "--no-color", "check", "--strict", sdist, wheel)
    assert _run(*check, cwd=tmp_path).count("PASSED") == 2


@pytest.mark.long
def test_archive_dates_follow_source_date_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(_build("wheel", _copy(tmp_path))) as archive:
        assert {member.date_time for member in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_every_module_imports(environment: Path) -> None:
    imported, beside = _run(environment / "bin" / "python", "-I", "-B", "-c", IMPORT_ALL, cwd=environment).split("\n")[
        :2
    ]
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in _packaged()
        if name.endswith(".py")
    }
    of_extras = {name for name in modules if name.startswith(EXTRAS)}
    assert len(of_extras) > len(EXTRAS)
    assert set(imported.split()) == modules - {"dbelief", "dbelief.__main__"} - of_extras
    assert beside == ""


def test_command_line_gathers_the_programs(environment: Path) -> None:
    _, _, listed = _run(environment / "bin" / "dbelief", "--help", cwd=environment).partition("Commands:\n")
    assert {line.split()[0] for line in listed.splitlines()} >= COMMANDS
