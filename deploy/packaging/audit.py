"""`make audit`: known vulnerabilities of the locked packages, of every version in the lock, by pip-audit.

Some mirrors of the index have no page of a version, which pip-audit reads. The page of the project then answers for
its newest version. A finding that SECURITY.md names is answered. Exit code 0: there is no other; 1: there is one, in a
line each; 2: a version was not audited, because no page answers about it; the line at the end names it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

from pip._internal.models.index import PyPI

from deploy.packaging.locked import LOCK, ROOT, Pin, pins

AUDIT = ("pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")
ANSWERS = ROOT / "SECURITY.md"


def rounds(locked: Iterable[Pin]) -> Iterator[dict[str, str]]:
    """Versions by package; several, because a package with markers has several versions, and pip-audit takes one."""
    left = [(pin.name, pin.version) for pin in locked]
    while left:
        taken = dict(reversed(left))
        yield dict(sorted(taken.items()))
        left = [pair for pair in left if taken[pair[0]] != pair[1]]


def ask(versions: dict[str, str]) -> list[dict[str, Any]]:
    """What pip-audit reports of each package; a package without an answer is left out, or has a `skip_reason`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in versions.items())
        file.flush()
        command = (sys.executable, "-m", *AUDIT, "-r", file.name, *sys.argv[1:])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        found = []
    audited = [package for package in found if "skip_reason" not in package]
    left = versions.keys() - {package["name"] for package in audited}
    with ThreadPoolExecutor(4) as threads:
        pages = threads.map(project_page, sorted(left))
    return audited + [page for page in pages if page and page["version"] == versions[page["name"]]]


def project_page(name: str) -> dict[str, Any] | None:
    """The findings about the newest version of a package, in pip-audit's form; None where the index does not answer."""
    try:
        with urlopen(f"{PyPI.pypi_url}/{name}/json", timeout=60) as answer:
            page = json.load(answer)
    except (OSError, ValueError):
        return None
    found = [
        {
            "id": finding["id"],
            "aliases": finding["aliases"],
            "fix_versions": finding["fixed_in"],
            "description": finding["summary"] or finding["details"],
        }
        for finding in page["vulnerabilities"]
        if not finding["withdrawn"]
    ]
    return {"name": name, "version": page["info"]["version"], "vulns": found}


def audit(locked: Iterable[Pin], answers: str, asked: Callable[[dict[str, str]], list[dict[str, Any]]] = ask) -> int:
    """Print findings without an answer, and one line at the end; the exit code."""
    count = open_ = answered = 0
    audited: list[dict[str, Any]] = []
    unknown: list[str] = []
    for versions in rounds(locked):
        count += len(versions)
        audited += (known := asked(versions))
        names = {package["name"] for package in known}
        unknown += [f"{name} {version}" for name, version in versions.items() if name not in names]
    for package in audited:
        for found in package["vulns"]:
            if any(identifier in answers for identifier in (found["id"], *found.get("aliases", ()))):
                answered += 1
                continue
            open_ += 1
            mended = ", ".join(found["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {found['id']}, mended in {mended}: {found['description']}")
    print(f"{len(audited)} packages, {open_} findings without an answer in {ANSWERS.name}, {answered} with one")
    if unknown:
        print(f"not audited, {len(unknown)} of {count}: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    return min(open_, 1)


if __name__ == "__main__":
    sys.exit(audit(pins(LOCK.read_text()), ANSWERS.read_text()))
