"""Kept libraries beside the code that they could replace: processor time to import, resident memory, threads.

    python -m benchmarks.startup.candidates [--rounds 15]

Each candidate runs in a fresh process, all of them in turn; those that are not installed are left out. Bytecode is
cached, and what every role has is imported before the measurement.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, timing

MEASURE = """
import json, os, resource, threading, time
{before}
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, began = memory(), time.process_time()
{code}
took, grown = time.process_time() - began, memory() - before
print(json.dumps({{"cpu_s": took, "mib": grown / 2**20, "threads": threading.active_count()}}), flush=True)
os._exit(0)  # not every server ends with its process
"""

OURS = """
from dbelief.telemetry.http_server import WebServer
from prometheus_client import CollectorRegistry, make_wsgi_app
server = WebServer("127.0.0.1:0", make_wsgi_app(CollectorRegistry()), "metrics")
"""
THEIRS = """
from prometheus_client import CollectorRegistry, start_http_server
server = start_http_server(0, "127.0.0.1", CollectorRegistry())
"""
PAGE_OURS = """
from dbelief.telemetry.http_server import WebServer
server = WebServer("127.0.0.1:0", lambda environ, answer: [], "the page")
"""
CHEROOT = """
from cheroot.wsgi import Server
server = Server(("127.0.0.1", 0), lambda environ, answer: [], numthreads=4)
server.prepare()
threading.Thread(target=server.serve, daemon=True).start()
"""
UVICORN = """
import uvicorn
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
application = Starlette()
application.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost"])
server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="critical"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started: time.sleep(0.001)
"""
TEXT = 'text = open("examples/mnist_lenet.yaml").read()\n'
PYYAML = TEXT + "import yaml\nyaml.compose(text, Loader=yaml.SafeLoader)"
RUAMEL = TEXT + "from ruamel.yaml import YAML\nYAML().load(text)"


@dataclass(frozen=True)
class Candidate:
    """Code of a role's start: with our own, or with a library; `before`: what the role has imported by then."""

    subject: str
    name: str
    package: str
    code: str
    before: str = "import numpy, prometheus_client, dbelief.process.terminal.console, dbelief.security"


CANDIDATES = (
    Candidate("job file", "PyYAML", "yaml", PYYAML, before="import numpy"),
    Candidate("job file", "ruamel.yaml", "ruamel", RUAMEL, before="import numpy"),
    Candidate("metrics port", "own, on wsgiref", "prometheus_client", OURS),
    Candidate("metrics port", "prometheus_client", "prometheus_client", THEIRS),
    Candidate("status page", "own, on wsgiref", "prometheus_client", PAGE_OURS),
    Candidate("status page", "cheroot", "cheroot", CHEROOT),
    Candidate("status page", "Starlette and uvicorn", "uvicorn", UVICORN),
)


def measured(candidate: Candidate) -> dict[str, Any]:
    """Figures of one fresh process."""
    command = [sys.executable, "-c", MEASURE.format(before=candidate.before, code=candidate.code)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    return {"subject": candidate.subject, "name": candidate.name, **found}


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    there = [one for one in CANDIDATES if importlib.util.find_spec(one.package) is not None]
    for one in there:
        measured(one)  # caches the bytecode
    rows = [measured(one) for _, one in timing.interleaved(there, rounds)]
    table = Table("subject", "candidate", "ms of processor time", "MiB", "threads", title=f"{rounds} starts of each")
    results = []
    for (subject, name), mine in timing.grouped(rows, "subject", "name").items():
        found = timing.medians(mine, "cpu_s", "mib", "threads")
        results.append({"subject": subject, "name": name, **found})
        table.add_row(subject, name, f"{1e3 * found['cpu_s']:.0f}", f"{found['mib']:.1f}", f"{found['threads']:.0f}")
    report.show(table, {"rounds": rounds, "results": results})


if __name__ == "__main__":
    main()
