"""The part of `lock.txt` that an installation needs, with hashes, as `pip install --require-hashes -r` takes it.

    python deploy/packaging/locked.py run dev        a part is `run`, `build`, an extra or a group of pyproject.toml
    python deploy/packaging/locked.py --all          the requirements of all parts, of which `make lock` makes the lock

`lock.txt` is one file for all Pythons that the classifiers name: a version for some of them alone has a marker. Another
Python gets the requirements of pyproject.toml instead, with a line that says so. The lock has every extra but those of
`UNLOCKED`, and says of each package which others need it. This file needs no package.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).with_name("lock.txt")
UNLOCKED = ("torch",)
"""Extras that the lock leaves out: which build of torch is right depends on the machine."""


@dataclass(frozen=True)
class Pin:
    """One version of a package: its lines with hashes, and the packages that need it."""

    name: str
    lines: str
    needed_by: frozenset[str]

    @property
    def version(self) -> str:
        """The one version that it allows."""
        return self.lines.split()[0].partition("==")[2]


def project() -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def parts(content: dict[str, Any]) -> dict[str, list[str]]:
    """Requirements by part: `run`, `build`, the locked extras, and the dependency groups."""
    extras = content["project"]["optional-dependencies"]
    return {
        "run": content["project"]["dependencies"],
        "build": content["build-system"]["requires"],
        **{name: needed for name, needed in extras.items() if name not in UNLOCKED},
        **content["dependency-groups"],
    }


def pythons(content: dict[str, Any]) -> list[str]:
    """Versions that the classifiers name, such as 3.12."""
    lines = "\n".join(content["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", lines, re.MULTILINE)


def name_of(requirement: str) -> str:
    """The name that a requirement begins with, in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def pins(lock: str) -> list[Pin]:
    """The pins of a lock; a package with markers has several."""
    found = []
    for block in re.split(r"^(?=[^\s#])", lock, flags=re.MULTILINE)[1:]:
        lines, _, needed_by = block.partition("    # via")
        found.append(Pin(name_of(lines), lines, frozenset(map(name_of, re.findall(r"[\w.-]+.*", needed_by)))))
    return found


def closure(locked: Iterable[Pin], requirements: Iterable[str]) -> list[Pin]:
    """The pins of requirements, and of all that these need."""
    locked, wanted, before = list(locked), set(map(name_of, requirements)), -1
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {pin.name for pin in locked if pin.needed_by & wanted}
    return [pin for pin in locked if pin.name in wanted]


def main(names: list[str]) -> int:
    """Print what the parts need; the exit code."""
    content = project()
    known = parts(content)
    if names == ["--all"]:
        print(*sorted({line for lines in known.values() for line in lines}), sep="\n")
        return 0
    asked = [name for name in re.split(r"[\s,]+", " ".join(names)) if name]
    if wrong := [name for name in asked if name not in known]:
        print(f"{', '.join(wrong)}: not in {LOCK.name}, which has {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    requirements = [line for name in asked for line in known[name]]
    python = "{}.{}".format(*sys.version_info)
    if python in pythons(content):
        print(*(pin.lines for pin in closure(pins(LOCK.read_text()), requirements)), sep="", end="")
    else:
        print(f"no lock for Python {python}: dependencies are the newest that pyproject.toml allows", file=sys.stderr)
        print(*requirements, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
