"""One job by one word on each backend that is here: python -m tests.deploy.backends [--rounds 3].

MNIST for three epochs, on hosts by ssh in network namespaces, on a Ray cluster of three nodes, on a Slurm cluster of
two, on an emulated Kubernetes, each beside this machine alone: exit code, samples, accuracy, and seconds from the
command to the first report of trained samples. Root, `DBELIEF_DATA`, and what each backend needs; one that is not here
is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import checkout, report
from dbelief.rundir.events import read_events
from tests.deploy import slurm_cluster, ssh_hosts
from tests.deploy.digits_job import PROGRAM

FIELDS = "--set=limits.epochs=3", "--set=replicas=3"
LIMIT_S = 300.0


class Backend(NamedTuple):
    """Where a command runs: the start of its command line, its options, its environment.

    `runs`: folder of run folders, where that is not below the command's own folder.
    """

    before: list[str]
    on: list[str]
    environment: dict[str, str]
    runs: Path | None = None


@contextmanager
def ssh(folder: Path) -> Iterator[Backend]:
    """Hosts h2 to h4, from h1."""
    with ssh_hosts.ssh_hosts(folder / "ssh", 4, 500) as hosts:
        (file := folder / "hosts.txt").write_text("\n".join(hosts.names))
        on = ["--on", "ssh", "--hosts", str(file), "--remote-command", shlex.join(PROGRAM)]
        yield Backend(hosts.here, on, hosts.environment)


@contextmanager
def ray(folder: Path) -> Iterator[Backend]:
    """Three nodes with two CPUs each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(2):
            cluster.add_node(**node)
        yield Backend([], ["--on", "ray"], {**os.environ, "RAY_ADDRESS": cluster.address})
    finally:
        cluster.shutdown()


@contextmanager
def slurm(folder: Path) -> Iterator[Backend]:
    """Two nodes with four CPUs each."""
    with slurm_cluster.SlurmCluster(folder / "cluster", 2, 4) as cluster:
        yield Backend([], ["--on", "slurm", "--sbatch", "--nodes=2"], {**os.environ, **cluster.environment})


@contextmanager
def kubernetes(folder: Path) -> Iterator[Backend]:
    """An emulated cluster, whose pods are processes of this host."""
    from tests.deploy.emulated.cluster import EmulatedCluster

    with EmulatedCluster(folder / "cluster") as cluster:
        cluster.claims.mkdir()
        (cluster.claims / "data").symlink_to(os.environ["DBELIEF_DATA"])
        on = ["--on", "kubernetes", "--set", "kubernetes.data=data"]
        yield Backend([], on, {**os.environ, **cluster.environment}, cluster.claims / "runs")


MADE: dict[str, Callable[[Path], AbstractContextManager[Backend]]] = {
    "ssh": ssh,
    "ray": ray,
    "slurm": slurm,
    "kubernetes": kubernetes,
}


def missing(name: str) -> str | None:
    """Why a backend is not here."""
    if name == "ray":
        return None if find_spec("ray") else "Ray is not installed"
    if name == "kubernetes":
        return None if find_spec("kubernetes") and find_spec("kmock") else "kubernetes or kmock is not installed"
    return ssh_hosts.missing() if name == "ssh" else slurm_cluster.missing() or None


def trained(backend: Backend, folder: Path) -> dict[str, Any]:
    """Figures of one run in an empty folder."""
    words = [*PROGRAM, "train", str(checkout.EXAMPLES / "mnist.yaml"), "--quiet", *FIELDS, *backend.on]
    began_s = time.time()
    ended = subprocess.run(
        [*backend.before, *words],
        cwd=folder,
        env=backend.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    whole_s = time.time() - began_s
    if ended.returncode:
        raise SystemExit(f"exit code {ended.returncode}: {ended.stderr[-1000:]}")
    run = (backend.runs or folder / "runs") / "mnist"
    summary = json.loads((run / "summary.json").read_text())
    first = next(one for one in read_events(run / "events.jsonl") if one["event"] == "progress" and one["samples"])
    return {
        "code": ended.returncode,
        "samples": summary["samples"],
        "accuracy": summary["test_accuracy"],
        "first_s": datetime.fromisoformat(first["time"]).timestamp() - began_s,
        "whole_s": whole_s,
    }


def main() -> None:
    """Run each backend beside this machine, and print its medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(MADE), nargs="+", default=list(MADE), help="these backends alone")
    arguments = parser.parse_args()
    rounds, local = arguments.rounds, Backend([], [], dict(os.environ))
    rows = []
    for name, make in MADE.items():
        if name not in arguments.only:
            continue
        if why := missing(name):
            print(f"{name}: {why}", file=sys.stderr)
            continue
        runs: dict[str, list[dict[str, Any]]] = {"local": [], name: []}
        with tempfile.TemporaryDirectory(prefix="dbelief-") as own, make(Path(own)) as backend:
            for number in range(rounds):
                for where, at in (("local", local), (name, backend)):
                    (folder := Path(own) / f"{where}-{number}").mkdir()
                    runs[where].append(trained(at, folder))
                    report.progress({"backend": where, **runs[where][-1]})
        medians = {key: statistics.median(one[key] for one in runs[name]) for key in runs[name][0]}
        beside = statistics.median(one["first_s"] for one in runs["local"])
        rows.append({"backend": name, **medians, "local_first_s": beside})
    report.print_figures({"rows": rows})


if __name__ == "__main__":
    main()
