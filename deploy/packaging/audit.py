"""`make audit`: known vulnerabilities of the locked packages, of every version in the lock, by pip-audit.

A finding that SECURITY.md names is answered. Exit code 0: there is no other; 1: there is one, in a line each; 2: a
package was not audited, because the service does not answer, or does not know it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
        return []
    return found


def audit(locked: Iterable[Pin], answers: str, asked: Callable[[dict[str, str]], list[dict[str, Any]]] = ask) -> int:
    """Print findings without an answer, and one line at the end; the exit code."""
    count = open_ = answered = 0
    audited: list[dict[str, Any]] = []
    for versions in rounds(locked):
        count += len(versions)
        audited += [package for package in asked(versions) if "skip_reason" not in package]
    for package in audited:
        for found in package["vulns"]:
            if any(identifier in answers for identifier in (found["id"], *found.get("aliases", ()))):
                answered += 1
                continue
            open_ += 1
            mended = ", ".join(found["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {found['id']}, mended in {mended}: {found['description']}")
    if unknown := count - len(audited):
        print(f"not audited: no answer about {unknown} of {count} packages from the service", file=sys.stderr)
        return 2
    print(f"{count} packages, {open_} findings without an answer in {ANSWERS.name}, {answered} with one")
    return min(open_, 1)


if __name__ == "__main__":
    sys.exit(audit(pins(LOCK.read_text()), ANSWERS.read_text()))
