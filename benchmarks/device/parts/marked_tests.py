"""The tests marked `gpu`, and how many of them passed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.device import surroundings
from benchmarks.device.findings import Findings
from benchmarks.harness import checkout

WORKERS = 4
"""Processes of pytest where there is a device."""
LIMIT_S = 100
"""Of one test."""


def marked() -> list[str]:
    """Files with such tests: to collect all others takes longer than these take."""
    files = sorted((checkout.ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(checkout.ROOT)) for path in files if "mark.gpu" in path.read_text()]


def measure(found: Findings, small: bool) -> None:
    """Run them; on the stand-in each test puts its own there."""
    several = [] if small or importlib.util.find_spec("xdist") is None else ["-n", str(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Warnings of other versions of CuPy and its driver are no failures of a device.
        options = ["-m", "gpu", "-q", "-rfEs", "-W", "default", f"--timeout={LIMIT_S}", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *several, *marked()]
        code = subprocess.run(command, cwd=checkout.ROOT, env=surroundings.without_stand_in()).returncode
        counts = count(report)
    for what, number in counts.items():
        found.figure(what, number, "tests")
    assert counts["passed"], "no test ran"
    assert not counts["failed"], f"{counts['failed']} tests failed"
    assert code == 0, f"pytest ended with {code}"


def count(report: Path) -> dict[str, int]:
    """Tests passed, failed (or in error) and skipped, of a report in JUnit's format."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}
