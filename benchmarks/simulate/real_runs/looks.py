"""A process on a host of a job that reads the job's status, and the workers' counters of samples, when it is asked to.

Its arguments are the addresses, HOST:PORT, of the coordinator and of the workers' metrics. It answers each line of its
input with a line of JSON:

    status    what `dbelief status --json` prints; null where no coordinator answers
    count     null; the counters are read from then on
    counted   by worker, [monotonic time in s, samples since it was started] of each look so far

It is started before a measurement begins, which would otherwise include the start of a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from benchmarks.faults.deployment import Counter
from benchmarks.harness import checkout, runs
from dbelief.errors import RuntimeFailure
from dbelief.monitor.status import JobLocation, get_status
from dbelief.process.terminal.console import host_and_port

ANSWER_S = 30.0


class Onlooker:
    """Such a process; its calls raise `TimeoutError` where no answer comes.

    Parameters
    ----------
    prefix
        Prefix of a command that runs on the host.
    """

    def __init__(self, run: runs.Run, prefix: Sequence[str], coordinator: str, workers: Sequence[str] = ()) -> None:
        program = f"import {__name__} as looks; looks.main()"
        command = [*prefix, sys.executable, "-c", program, coordinator, *workers]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=checkout.ROOT)
        run.started.append(self.process)
        self._selector = DefaultSelector()
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, EVENT_READ)

    def ask(self, what: str) -> Any:
        """The answer to "status", "count" or "counted"."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        if not self._selector.select(ANSWER_S):
            raise TimeoutError(f"no answer to {what} after {ANSWER_S:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the onlooker ended with exit code {self.process.wait(ANSWER_S)}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._selector.close()
        self.process.kill()
        self.process.communicate()  # closes its pipes


def main() -> None:
    """Answer until the input ends."""
    coordinator, *workers = sys.argv[1:]
    counters: list[Counter] = []

    def status() -> Any:
        try:
            return get_status(JobLocation.of(coordinator))
        except RuntimeFailure:
            return None

    def count() -> None:
        for host, port in map(host_and_port, workers):
            counters.append(Counter(int(port), host))

    answers: dict[str, Callable[[], Any]] = {
        "status": status,
        "count": count,
        "counted": lambda: [list(counter.looks) for counter in counters],
    }
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)
    for counter in counters:
        counter.close()
