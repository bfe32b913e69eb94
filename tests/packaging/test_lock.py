"""The lock against pyproject.toml, and the parts of it that installations take. Nothing is downloaded."""

from __future__ import annotations

import sys
from importlib import metadata
from itertools import product

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.packaging.locked import LOCK, UNLOCKED, Pin, closure, main, name_of, parts, pins, project, pythons

PROJECT = project()
PINS = pins(LOCK.read_text())
PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
]
SMALL = """\
# made by hand
Alpha.One==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:11
    # via -r -
alpha-one==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:12
    # via -r -
beta==1.0 \\
    --hash=sha256:13
    # via
    #   -r -
    #   alpha-one
gamma==1.0 \\
    --hash=sha256:14
    # via beta
other==1.0 \\
    --hash=sha256:15
    # via -r -
"""


def _requirement(pin: Pin) -> Requirement:
    return Requirement(pin.lines.partition("\\")[0])


def _applies(marker: Marker | None, environment: dict[str, str]) -> bool:
    return marker is None or marker.evaluate(environment)


@pytest.mark.parametrize(("python", "platform"), list(product(pythons(PROJECT), PLATFORMS)))
def test_every_requirement_has_one_pin_that_satisfies_it(python: str, platform: dict[str, str]) -> None:
    environment = {**platform, "python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    versions: dict[str, list[str]] = {}
    for pin in PINS:
        locked = _requirement(pin)
        if _applies(locked.marker, environment):
            versions.setdefault(pin.name, []).extend(specifier.version for specifier in locked.specifier)
    wrong = []
    for requirement in (Requirement(line) for lines in parts(PROJECT).values() for line in lines):
        found = versions.get(canonicalize_name(requirement.name), [])
        if _applies(requirement.marker, environment) and not (
            len(found) == 1 and requirement.specifier.contains(found[0])
        ):
            wrong.append(f"{requirement}: the lock has {found or 'none'}")
    assert wrong == [], "run `make lock`"


def test_every_pin_has_hashes_and_is_needed() -> None:
    assert len(PINS) > 100, "so few cannot be right"
    assert [pin.name for pin in PINS if "==" not in pin.lines or "--hash=sha256:" not in pin.lines] == []
    needed = closure(PINS, [line for lines in parts(PROJECT).values() for line in lines])
    assert {pin.name for pin in PINS} - {pin.name for pin in needed} == set(), "run `make lock`"


def test_only_named_extras_are_left_out() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) - set(parts(PROJECT)) == set(UNLOCKED)


@pytest.mark.parametrize("part", ["run", "build", "dev"])
def test_a_part_has_what_its_packages_need_here(part: str) -> None:
    taken = {pin.name for pin in closure(PINS, parts(PROJECT)[part])}
    missing = []
    for name in taken:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # a package for another platform or Python
            continue
        missing += [
            f"{name}: {need.name}"
            for need in map(Requirement, needs)
            if _applies(need.marker, {"extra": ""}) and canonicalize_name(need.name) not in taken
        ]
    assert missing == []


def test_a_part_is_what_is_asked_for_and_what_that_needs() -> None:
    small = pins(SMALL)
    assert [pin.name for pin in small] == ["alpha-one", "alpha-one", "beta", "gamma", "other"]
    assert small[2].lines == "beta==1.0 \\\n    --hash=sha256:13\n"
    assert [pin.name for pin in closure(small, ["alpha_one>=1"])] == ["alpha-one", "alpha-one", "beta", "gamma"]
    assert [pin.name for pin in closure(small, ["other", "Gamma[x]>=1; python_version > '3'"])] == ["gamma", "other"]


def test_parts_are_printed_with_hashes_and_wrong_names_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", "s3,parquet"]) == 0
    printed = {pin.name for pin in pins(capsys.readouterr().out)}
    assert printed >= {"numpy", "s3fs", "botocore", "pyarrow"}
    assert not printed & {"moto", "pytest", "torch"}
    assert main(["torch"]) == 2
    assert capsys.readouterr().err.startswith("torch: not in lock.txt, which has ")
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert main(["run"]) == 0
    printed_lines, said = capsys.readouterr()
    assert set(map(name_of, printed_lines.splitlines())) == set(map(name_of, parts(PROJECT)["run"]))
    assert said == "no lock for Python 3.99: dependencies are the newest that pyproject.toml allows\n"
