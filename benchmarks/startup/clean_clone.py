"""A clean clone, `make run`, and its effects outside the project.

    python -m benchmarks.startup.clean_clone [--repository .]

Clones the repository into a temporary folder, sets it up, runs `make run`, and compares processes, listening sockets
and files before and after: nothing may be new but runs/, the virtual environment and named caches in the project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import checkout, options

ALLOWED = ("runs/", ".venv/", ".cache/")


def processes() -> dict[int, str]:
    """Command lines of this user's processes by pid, this one and its children aside."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile
        if int(entry.name) != os.getpid() and ("dbelief" in command or "valkey" in command):
            found[int(entry.name)] = command
    return found


def sockets() -> set[str]:
    """Addresses that are listened on."""
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A"}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if ".git/" not in path.as_posix()}


def temporary() -> set[str]:
    return {entry.name for entry in Path(tempfile.gettempdir()).iterdir()}


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--repository", default=str(checkout.ROOT))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-run-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "-q", arguments.repository, str(clone)], check=True)
        before = processes(), sockets(), files(clone), temporary()
        began = time.monotonic()
        subprocess.run(["make", "-C", str(clone), ".venv/ready-to-run"], check=True, stdout=sys.stderr)
        set_up_s = time.monotonic() - began
        began = time.monotonic()
        code = subprocess.run(["make", "-C", str(clone), "run"], stdout=sys.stderr, check=False).returncode
        run_s = time.monotonic() - began
        after = processes(), sockets(), files(clone), temporary()
        summary = json.loads((clone / "runs" / "digits" / "summary.json").read_text())
        new_files = sorted(f for f in after[2] - before[2] if not (f + "/").startswith(ALLOWED))
        result = {
            "exit_code": code,
            "set_up_s": round(set_up_s, 1),
            "run_s": round(run_s, 1),
            "test_accuracy": summary["test_accuracy"],
            "shares": {r: round(n / summary["samples"], 3) for r, n in summary["samples_per_replica"].items()},
            "new_processes": [after[0][pid] for pid in after[0].keys() - before[0].keys()],
            "new_sockets": sorted(after[1] - before[1]),
            "new_files": new_files,
            "new_temporary_files": sorted(after[3] - before[3]),
        }
        for name, value in result.items():
            print(f"{name:>20}: {value}", file=sys.stderr)
        print(json.dumps(result))
        clean = not (new_files or result["new_processes"] or result["new_sockets"] or result["new_temporary_files"])
        raise SystemExit(code or (0 if clean and summary["test_accuracy"] >= 0.96 else 1))


if __name__ == "__main__":
    main()
