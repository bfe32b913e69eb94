"""Situations that bound a job, each made by real processes: which bound is named, and whether the advice is reached.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.advise.situations
        [--only link,shards,straggler,data,computing,spare,batch,leases,machine]
        [--seconds 20] [--over 12] [--repeats 3]

Each situation is run as it is, where `dbelief advise --json` measures it for --over seconds, and with the change that
was advised, in turn. `stated` is the advised multiple of the samples/s, the median over the runs; `reached` that of the
measured samples/s, medians too, and `share` = (reached - 1) / (stated - 1). Where nothing is advised, `stated` is that
of the plausible change, which is made all the same.

    link        three hosts with a worker and a shard each, 100 Mbit/s and 5 ms; changed: n_push and n_fetch
    shards      a shard on one host, six workers on others, 50 Mbit/s; changed: a second shard on a host of its own
    straggler   three workers in lockstep, one ten times as slow; changed: no lockstep
    data        samples that take 2 ms each to be read; changed: more workers
    computing   two workers that use all processors; changed: twice as many
    spare       two workers that compute without processors, as on a GPU; changed: more workers
    batch       mini-batches of two samples; changed: larger ones
    leases      six workers, and four leases in all; changed: smaller leases
    machine     two hosts on 20 Mbit/s; changed: one of them alone

Workers wait in each mini-batch for some time in place of computing (--compute-wait), but in `computing` and `batch`, so
that two cores carry all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import hosts, options, report, runs, timing
from benchmarks.workers import slow_links
from dbelief.errors import DataError
from dbelief.rundir.events import read_events

START_S, END_S = 120.0, 60.0
SETTLED_S = 3.0
"""After all workers have trained, until which processes warm up."""
WANTED = 0.7
"""Of the share."""
NETWORK = "network"
DOWNPOUR = {"name": "downpour", "batch": 8, "rule": {"name": "sgd", "rate": 0.001}, "warm_start": None}
SMALL_NET = {"layers": [{"dense": 32}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}
LARGE_NET = {"layers": [{"dense": 768}, "relu", {"dense": 768}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}
SLOW_SAMPLES = '''
import time

import numpy as np


class Slow:
    """Samples that take 2 ms each to be read."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.full(64, index % 7, np.float32), index % 10
'''


@dataclass(frozen=True)
class Situation:
    """One situation.

    Attributes
    ----------
    bound
        What must be named.
    change
        Which advice is followed: "workers", "shards", or a field of the job.
    job
        Fields of the job that differ.
    waits_s
        By worker, seconds in each mini-batch in place of computing.
    link
        Of each host to a switch, MBIT:MS:LOSS; "": all on this machine.
    apart
        Whether the first host has the shards alone; else each host has a worker and a shard.
    plausible
        Number of workers to try where none is advised.
    whole
        Whether the run ends by itself, and is advised on then.
    """

    name: str
    bound: str
    change: str
    job: Mapping[str, Any] = field(default_factory=dict)
    waits_s: Sequence[float] = (0.0, 0.0)
    link: str = ""
    apart: bool = False
    plausible: int = 0
    whole: bool = False

    @property
    def shards(self) -> int:
        """Shards as it is."""
        return 1 if self.apart or not self.link else len(self.waits_s)


LEASES, LEASE_STEPS = 4, 250
SITUATIONS = [
    Situation("link", "link", "strategy.n_push", waits_s=(0.2, 0.2, 0.2), link="100:5:0"),
    Situation("shards", "shards", "shards", waits_s=(0.4,) * 6, link="50:2:0", apart=True),
    Situation(
        "straggler",
        "straggler",
        "strategy.staleness",
        {"strategy": {**DOWNPOUR, "staleness": 0}, "model": SMALL_NET},
        (0.03, 0.03, 0.3),
    ),
    Situation(
        "data",
        "data",
        "workers",
        {"data": {"source": "python", "train": "samples.py:Slow", "classes": 10}, "model": SMALL_NET},
    ),
    Situation(
        "computing",
        "computing",
        "workers",
        {"strategy": {**DOWNPOUR, "batch": 256}, "model": LARGE_NET},
        plausible=4,
    ),
    Situation("spare", "computing", "workers", {"model": SMALL_NET}, (0.05, 0.05)),
    Situation("batch", "small batch", "strategy.batch", {"strategy": {**DOWNPOUR, "batch": 2}, "model": SMALL_NET}),
    Situation(
        "leases",
        "leases",
        "strategy.lease",
        {
            "strategy": {**DOWNPOUR, "lease": 8 * LEASE_STEPS},
            "model": SMALL_NET,
            "limits": {"samples": 8 * LEASE_STEPS * LEASES},
        },
        (0.05,) * 6,
        whole=True,
    ),
    Situation("machine", "one machine", "replicas", waits_s=(0.05, 0.05), link="20:5:0"),
]


@dataclass(frozen=True)
class Case:
    """A situation as it is, or changed."""

    situation: Situation
    fields: Mapping[str, str] = field(default_factory=dict)
    waits_s: Sequence[float] = ()
    shards: int = 1
    linked: bool = False

    @classmethod
    def as_is(cls, one: Situation) -> Case:
        return cls(one, {}, one.waits_s, one.shards, bool(one.link))

    @classmethod
    def changed(cls, one: Situation, advice: Mapping[str, Any]) -> Case:
        """After the advice."""
        settings = advice["settings"]
        if "replicas" in settings:
            return cls(one, {}, one.waits_s[: int(settings["replicas"])], int(settings["shards"]), False)
        workers, shards = advice["workers"] or len(one.waits_s), advice["shards"] or one.shards
        waits_s = [one.waits_s[number % len(one.waits_s)] for number in range(workers)]
        return cls(one, settings, waits_s, shards, bool(one.link))

    def job(self, folder: Path) -> dict[str, Any]:
        """The job file."""
        return {
            **slow_links.job_of(NETWORK, "downpour", len(self.waits_s)),
            "wire": {},
            "strategy": DOWNPOUR,
            "name": "links",
            **self.situation.job,
            "replicas": len(self.waits_s),
            "shards": self.shards,
            "output": str(folder),
        }


@contextlib.contextmanager
def started(case: Case, hostnet: Path | None, seconds: float) -> Iterator[tuple[runs.Run, str]]:
    """The job's processes; the address of its coordinator."""
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(runs.temporary_run("links"))
        (run.folder / "samples.py").write_text(SLOW_SAMPLES)
        file, ready = run.folder / "job.yaml", run.folder / "address"
        file.write_text(json.dumps(case.job(run.folder)))
        apart = case.situation.apart
        count = len(case.waits_s) + case.shards if apart else len(case.waits_s)
        used = slow_links.Hosts(count)
        if case.linked:
            assert hostnet is not None
            used = slow_links.Hosts(count, f"dba{os.getpid() % 10_000}")
            rate, delay, loss = case.situation.link.split(":")
            bad = () if delay == loss == "0" else ("--delay-ms", delay, "--loss-pct", loss)
            lasts_s = seconds + START_S + END_S
            stack.enter_context(hosts.network(hostnet, used.prefix, count, float(rate), lasts_s, *bad))
        fields = options.settings(case.fields)
        listen = ["--listen", f"{used.address(1)}:0", "--ready-file", str(ready)]
        run.start("coordinator", ["coordinator", str(file), *fields, *listen], used.inside(1))
        runs.wait_for(lambda: ready.exists() or None, "the coordinator", START_S)
        address = ready.read_text()
        for number in range(case.shards):
            host = number + 1
            member = ["--coordinator", address, "--number", str(number), "--listen", f"{used.address(host)}:0"]
            run.start(f"ps-{number}", ["ps", *member], used.inside(host))
        for number, wait_s in enumerate(case.waits_s):
            host = number + 1 + (case.shards if apart else 0)
            words = ["worker", "--coordinator", address, "--number", str(number), "--compute-wait", str(wait_s)]
            run.start(f"worker-{number}", [*words, *(["--no-shared-memory"] if case.linked else [])], used.inside(host))
        yield run, address


def progress_of(run: runs.Run) -> list[dict[str, Any]]:
    """Events of progress so far; none before the run folder is there."""
    try:
        return [event for event in read_events(run.run / "events.jsonl") if event["event"] == "progress"]
    except (DataError, OSError):
        return []


def advise(run: runs.Run, case: Case, where: str, over_s: float) -> dict[str, Any]:
    """The JSON of `dbelief advise`."""
    inside = hosts.inside(f"dba{os.getpid() % 10_000}", 1) if case.linked else []
    command = [*inside, *runs.COMMAND, "advise", where, "--json", "--over", f"{over_s:g}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=over_s + END_S)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def one(case: Case, seconds: float, over_s: float, hostnet: Path | None, advised: bool) -> tuple[float, dict[str, Any]]:
    """Samples a second, and what was advised."""
    with started(case, hostnet, seconds) as (run, address):

        def all_train() -> bool | None:
            slow_links.found_in(run, list, seconds)
            events = progress_of(run)
            return bool(events and events[-1]["members"] == len(case.waits_s)) or None

        runs.wait_for(all_train, "all workers", START_S)
        began_s = progress_of(run)[-1]["elapsed_s"]
        if case.situation.whole:
            runs.wait_for(run.started[0].poll, "the end of the job", START_S + 10 * seconds)
            events = progress_of(run)
            took_s = events[-1]["elapsed_s"] - events[0]["elapsed_s"]
            rate = (events[-1]["samples"] - events[0]["samples"]) / took_s
            return rate, advise(run, case, str(run.run), over_s) if advised else {}
        found: dict[str, Any] = {}

        def measured(least_s: float) -> Callable[[], list[dict[str, Any]] | None]:
            def look() -> list[dict[str, Any]] | None:
                slow_links.found_in(run, list, seconds)
                events = [one for one in progress_of(run) if one["elapsed_s"] >= began_s + SETTLED_S]
                return events if events and events[-1]["elapsed_s"] - events[0]["elapsed_s"] >= least_s else None

            return look

        runs.wait_for(measured(1.0), "the first samples", START_S)
        if advised:
            found = advise(run, case, address, over_s)
        events = runs.wait_for(measured(seconds), "samples", START_S + 10 * seconds)
        line = statistics.linear_regression([e["elapsed_s"] for e in events], [e["samples"] for e in events])
        return line.slope, found


def followed(one: Situation, found: Mapping[str, Any]) -> dict[str, Any]:
    """The advice that is followed, or the plausible change, of which nothing is promised."""
    for advice in [*found["advice"], *found["nothing"]]:
        chosen = advice[one.change] if one.change in ("workers", "shards") else advice["settings"].get(one.change)
        if chosen and (one.change != "workers" or chosen > len(one.waits_s)):
            return dict(advice)
    if one.plausible:
        return {"workers": one.plausible, "shards": None, "settings": {}, "gain": 1.0, "what": "as many again"}
    raise SystemExit(f"{one.name}: no advice on {one.change}: {json.dumps(found['advice'])}")


def row_of(one: Situation, measured: Sequence[dict[str, Any]], change: Mapping[str, Any]) -> dict[str, Any]:
    """The medians of a situation."""
    before, after = (
        statistics.median(row["rate"] for row in measured if row["changed"] == which) for which in (False, True)
    )
    found = [row for row in measured if not row["changed"]]
    stated, reached = statistics.median(row["stated"] for row in found), after / before
    share = (reached - 1) / (stated - 1) if stated >= 1.05 else None
    named = [row["bound"] for row in found]
    return {
        "situation": one.name,
        "bound": one.bound,
        "named": max(named, key=named.count),
        "right": named.count(one.bound),
        "of": len(named),
        "change": change["what"],
        "before": round(before, 1),
        "after": round(after, 1),
        "stated": round(stated, 3),
        "reached": round(reached, 3),
        "share": None if share is None else round(share, 3),
        "kept": bool(share >= WANTED if share is not None else reached <= 1.1),
    }


def situation_rows(
    one_of: Situation, seconds: float, over_s: float, repeats: int, hostnet: Path | None
) -> dict[str, Any]:
    """Run a situation as it is and changed, in turn; the first advice decides the change."""
    measured: list[dict[str, Any]] = []
    change: dict[str, Any] = {}
    for _, which in timing.interleaved([False, True], repeats):
        if which and not change:
            continue  # in the reverse order, before the first advice: there is none
        case = Case.changed(one_of, change) if which else Case.as_is(one_of)
        rate, found = one(case, seconds, over_s, hostnet, advised=not which)
        row: dict[str, Any] = {"situation": one_of.name, "changed": which, "rate": round(rate, 2)}
        if not which:
            advice = followed(one_of, found)
            change = change or advice
            row |= {"bound": found["bound"], "stated": round(advice["gain"], 3), "what": advice["what"]}
            row["reason"] = found["reason"]
        report.progress(row)
        measured.append(row)
    return row_of(one_of, measured, change)


def main() -> None:
    """Measure all situations."""
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    names = [one.name for one in SITUATIONS]
    parser.add_argument("--only", type=options.words, default=names)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--over", type=float, default=12.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(names):
        parser.error(f"no situation is called {min(unknown)!r}, only {', '.join(names)}")
    chosen = [one for one in SITUATIONS if one.name in arguments.only]
    if any(one.link for one in chosen) and hosts.left_out(__file__, arguments.hostnet):
        chosen = [one for one in chosen if not one.link]
    os.environ["DBELIEF_INSECURE"] = "1"
    rows = []
    for one_of in chosen:
        rows.append(situation_rows(one_of, arguments.seconds, arguments.over, arguments.repeats, arguments.hostnet))
        report.progress(rows[-1])
    table = Table("situation", "named", "change", "stated", "reached", "share")
    for row in rows:
        share = "" if row["share"] is None else f"{row['share']:.2f}"
        numbers = (f"{row['stated']:.2f}", f"{row['reached']:.2f}", share)
        table.add_row(row["situation"], f"{row['named']} ({row['right']}/{row['of']})", row["change"], *numbers)
    report.show(table, {"rows": rows})
    sys.exit(0)


if __name__ == "__main__":
    main()
