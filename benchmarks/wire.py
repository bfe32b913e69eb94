"""The wire held to what it must reach on a quiet machine of two cores.

    python benchmarks/wire.py [--rounds 25]

Runs `dbelief bench wire` and ends with 1 where a figure is on the wrong side of its limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

AT_LEAST = {"pull_x": 0.75, "push_x": 0.68}
AT_MOST = {"roundtrip_x": 1.40, "p99_over_p50": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = str(parser.parse_args().rounds)
    command = [sys.executable, "-m", "dbelief", "bench", "wire", "--json", "--rounds", rounds]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    figures = {**found, **found["workers"]}
    missed = [name for name, limit in AT_LEAST.items() if figures[name] < limit]
    missed += [name for name, limit in AT_MOST.items() if figures[name] > limit]
    for name in missed:
        wanted = f"at least {AT_LEAST[name]}" if name in AT_LEAST else f"at most {AT_MOST[name]}"
        print(f"{name} is {figures[name]:.2f}, wanted {wanted}", file=sys.stderr)
    print(json.dumps(found))
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
