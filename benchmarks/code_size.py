"""Size of the code and of its documents at some commits, and the branches that `make test` covers.

    python -m benchmarks.code_size COMMIT... [--no-tests]

Clones the repository for each commit, counts lines, files and words, installs the clone's own environment with
pytest-cov, and runs what `make test` runs. Coverage is of this process: processes that a test starts do not count.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import checkout, options

PRODUCT = ("dbelief", "coordinator", "ps_server", "worker")


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def python(clone: Path, folders: Iterable[str]) -> list[Path]:
    """Handwritten modules below these folders: without what protoc makes."""
    found = [path for folder in folders for path in (clone / folder).rglob("*.py")]
    return [path for path in found if "_pb2" not in path.name]


def counts(clone: Path) -> dict[str, int]:
    documents = [*clone.glob("*.md"), *(clone / "docs").rglob("*.md")]
    return {
        "product": lines(python(clone, PRODUCT)),
        "tests": lines(python(clone, ["tests"])),
        "modules": len(python(clone, [*PRODUCT, "tests"])),
        "words": sum(len(path.read_text().split()) for path in documents),
    }


def covered(clone: Path) -> dict[str, Any]:
    """Tests that passed and failed, and shares of statements and branches that they covered, in percent."""
    subprocess.run(["make", "--silent", ".venv/ready-to-develop"], cwd=clone, check=True)
    subprocess.run([".venv/bin/pip", "install", "--quiet", "pytest-cov"], cwd=clone, check=True)
    measured = [f"--cov={folder}" for folder in PRODUCT]
    words = [".venv/bin/pytest", "-q", "-n", "3", "--dist=worksteal", "--cov-branch", *measured, "--cov-report="]
    ended = subprocess.run(words, cwd=clone, text=True, capture_output=True, check=False)
    passed = re.search(r"(\d+) passed", ended.stdout)
    if passed is None:
        raise SystemExit(f"no test passed in {clone}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    failed = re.search(r"(\d+) failed", ended.stdout)
    # Some tests run modules of folders that are gone when the report is made.
    subprocess.run([".venv/bin/coverage", "json", "--quiet", "--ignore-errors"], cwd=clone, check=True)
    totals = json.loads((clone / "coverage.json").read_text())["totals"]
    return {
        "passed": int(passed[1]),
        "failed": int(failed[1]) if failed else 0,
        "statements": 100 * totals["covered_lines"] / totals["num_statements"],
        "branches": 100 * totals["covered_branches"] / totals["num_branches"],
    }


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    parser.add_argument("--no-tests", action="store_true", help="count only")
    arguments = parser.parse_args()
    rows = []
    for commit in arguments.commits:
        with tempfile.TemporaryDirectory(prefix="code-size-") as scratch:
            clone = Path(scratch) / "clone"
            subprocess.run(["git", "clone", "-q", str(checkout.ROOT), str(clone)], check=True)
            subprocess.run(["git", "checkout", "-q", commit], cwd=clone, check=True)
            rows.append({"commit": commit, **counts(clone), **({} if arguments.no_tests else covered(clone))})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
