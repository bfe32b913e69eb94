"""`make test-portable`: the numeric tests as on other processors, one setting after the other.

    python -m tests.portable [--only NAME ...]

Each setting has a cache of its own for compiled code. A processor that this host cannot run the code of is left out, in
one line. Ends with 1 where a setting fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import numpy as np

from .processors import HOST, NEEDS, ROOT, missing, settings

NUMERIC = (
    "tests/portable/test_digests.py",
    "tests/portable/test_bounds.py",
    "tests/dbelief/codec",
    "tests/dbelief/optim",
    "tests/dbelief/sparse",
    "tests/dbelief/arrays/test_lanes.py",
    "tests/dbelief/optim/test_powers.py",
    "tests/ps_server/store/test_accumulator.py",
    "tests/ps_server/test_programs.py",
    "tests/equivalence/test_replay.py",
)
BITS = ("tests/portable/test_digests.py", "tests/portable/test_bounds.py", "tests/dbelief/optim/test_powers.py")
"""What a setting may change that has nothing to do with compiled loops."""
PROCESSES = ("tests/portable/test_processors.py",)
Setting = tuple[dict[str, str], tuple[str, ...]]
"""Environment variables, and the tests that run with them."""
LIBM = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"


def numpy_features() -> list[str]:
    """What this host has that NumPy would use, and can be told not to."""
    return list(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))


def plan() -> dict[str, Setting]:
    """Settings by name."""
    made: dict[str, Setting] = {name: (settings(name), NUMERIC) for name in (*NEEDS, HOST)}
    if features := numpy_features():
        made["numpy"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(features)}, NUMERIC
    made["libm"] = {"GLIBC_TUNABLES": LIBM}, BITS
    made["mixed"] = {}, PROCESSES
    return made


def run(name: str, environment: dict[str, str], tests: tuple[str, ...]) -> bool:
    """Run the tests under a setting; whether they passed."""
    began_s = time.monotonic()
    cache = ROOT / ".cache" / "portable" / name
    around = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_CPU_", "NPY_DISABLE_"))}
    around |= {**environment, "NUMBA_CACHE_DIR": str(cache), "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-r", "fE", "--no-header", "-m", "not deploy", *tests]
    print(f"== {name}: {' '.join(f'{k}={v!r}' for k, v in environment.items()) or 'as it is'}", flush=True)
    passed = subprocess.run(command, cwd=ROOT, env=around, check=False).returncode == 0
    print(f"== {name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - began_s:.0f} s", flush=True)
    return passed


def main() -> None:
    """Run all settings, or those that are named."""
    settings_here = plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=settings_here, default=list(settings_here))
    failed = []
    for name in parser.parse_args().only:
        if name in NEEDS and (lacks := missing(name)):
            print(f"== {name}: left out, this host lacks {', '.join(lacks)}", flush=True)
        elif not run(name, *settings_here[name]):
            failed.append(name)
    print(f"not the same on: {', '.join(failed)}" if failed else "the same under every setting")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
