"""pip installs `dbelief` and nothing beside it: the tree's own bytes, and every module imports.

Two traps are meant: a new subpackage that is missing from `packages`, and a program that imports itself by the name
of its folder. Nothing is downloaded: the fresh environment looks for dependencies where this one has them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ps_server", "worker", "coordinator")
COMMANDS = {"ps", "worker", "coordinator", "train", "status", "evaluate", "export", "job"}
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel({!r}))"
IMPORT_ALL = """
import importlib, pkgutil, sys, dbelief
names = [m.name for m in pkgutil.walk_packages(dbelief.__path__, "dbelief.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(*names)
print(*sorted({"ps_server", "worker", "coordinator"} & set(sys.modules)))
"""

pytestmark = pytest.mark.processes


def _packaged() -> dict[str, bytes]:
    """Files of the tree by their name in the wheel."""
    folders = {"dbelief": ROOT / "dbelief", **{f"dbelief/{name}": ROOT / name for name in PROGRAMS}}
    return {
        f"{inside}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for inside, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed; no environment variable of Python's may help it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that the tree stays as it is."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("dbelief", *PROGRAMS):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    _run(sys.executable, "-c", BUILD.format(str(copy / "dist")), cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


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


def test_every_module_imports(environment: Path) -> None:
    imported, beside = _run(environment / "bin" / "python", "-I", "-B", "-c", IMPORT_ALL, cwd=environment).split("\n")[
        :2
    ]
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in _packaged()
        if name.endswith(".py")
    }
    assert set(imported.split()) == modules - {"dbelief", "dbelief.__main__"}
    assert beside == ""


def test_command_line_gathers_the_programs(environment: Path) -> None:
    _, _, listed = _run(environment / "bin" / "dbelief", "--help", cwd=environment).partition("Commands:\n")
    assert {line.split()[0] for line in listed.splitlines()} >= COMMANDS
