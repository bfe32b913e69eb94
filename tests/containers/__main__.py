"""`make test-containers`: the image, MNIST trained in containers, and with each of them killed; a store of objects.

Needs root, podman and podman-compose, and DBELIEF_DATA, the folder that holds mnist/; takes ten minutes or so. Where
base images are not to be pulled, others of the same names do as well. One line for each check; exit code 1 where one
failed. Whatever it starts has a name of its own, and ends with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.packaging.locked import LOCK, closure, name_of, parts, pins
from deploy.packaging.locked import project as pyproject
from tests.processes.conftest import wait_for

from .project import ROOT, STORED, Project, run, started
from .store import SETTINGS, store

IMAGE, IMAGE_S3, IMAGE_AGAIN = (f"localhost/dbelief-test:{tag}" for tag in ("latest", "s3", "again"))
JOB = "mnist"
SERVICES = ("certs", "registry", "coordinator", "standby", "ps", "worker", "prometheus")
OURS = ("coordinator_1", "standby_1", "ps_1", "ps_2", "worker_1", "worker_2", "worker_3", "worker_4")
PROMETHEUS = "prometheus_1"
VICTIMS = ("registry_1", *OURS)
SAMPLES = 55_000 * 14
FLOOR = 0.975
"""Test accuracy that the job reaches with any seed, killed or not; docs/results/deployment.md has what is usual."""
FURTHER = 15_000
"""Samples that are to be trained after a kill before the next: some two seconds' worth."""
END_S = 900.0
DIGITS = {
    "DBELIEF_JOB": "digits.yaml",
    "DBELIEF_DATA": str(ROOT / "examples"),
    "DBELIEF_WORKERS": "3",
    "DBELIEF_SET": "limits.epochs=300 limits.patience=null snapshots.every_s=2",
}
"""A job that needs no data, and lasts long enough to be disturbed."""


class Checks:
    """Lines, and whether any of them is bad."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, what: str, good: bool, found: object = "") -> None:
        self.failed += not good
        told = f": {found}" if found != "" else ""
        print(f"{'ok  ' if good else 'FAIL'} {what}{told}", flush=True)


def _build(image: str, *settings: str, options: str = "--quiet") -> None:
    names = (f"IMAGE={image}", "ENGINE=podman", f"ARGS={options}", *settings)
    run("make", "-C", ROOT, "image", *names, timeout_s=2_400)


def _image(checks: Checks) -> None:
    begun_s = time.monotonic()
    _build(IMAGE)
    size = int(run("podman", "image", "inspect", "--format", "{{.Size}}", IMAGE)) / 1e6
    checks.check("the image builds", True, f"{size:.0f} MB, {time.monotonic() - begun_s:.0f} s")

    def inside(*command: str) -> subprocess.CompletedProcess[str]:
        confined = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--network", "none")
        whole = ("podman", "run", "--rm", *confined, "--entrypoint", command[0], IMAGE, *command[1:])
        return subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)

    checks.check("it is no root's", inside("id", "-u").stdout.strip() == "1000")
    compilers = [name for name in ("gcc", "cc", "g++", "nvcc") if inside("which", name).returncode == 0]
    checks.check("it has no compiler", not compilers, compilers or "")
    warm = "from dbelief.optim import RULES, make_rule, warm_up; [warm_up(make_rule(name, {})) for name in RULES]"
    listed = inside("sh", "-c", f'python -c "{warm}" && find /tmp/numba -name "*.nbc" | wc -l')
    checks.check(
        "rules compile with a read-only root",
        int(listed.stdout or 0) > 0,
        "" if listed.stdout else listed.stderr[-200:],
    )


def _image_with_s3() -> str:
    _build(IMAGE_S3, "EXTRAS=s3")
    return IMAGE_S3


def _packages(image: str) -> dict[str, str]:
    """Versions of the packages that the SBOM of an image names."""
    inside = ("podman", "run", "--rm", "--network", "none", "--entrypoint", "cat", image, "/opt/dbelief/sbom.json")
    return {name_of(package["name"]): package["version"] for package in json.loads(run(*inside))["components"]}


def _locked(checks: Checks) -> None:
    """The image built twice, the second time without any layer of the first."""
    _build(IMAGE)
    begun_s = time.monotonic()
    _build(IMAGE_AGAIN, options="--quiet --no-cache")
    took_s, first, second = time.monotonic() - begun_s, _packages(IMAGE), _packages(IMAGE_AGAIN)
    checks.check(
        "the image built again has the same packages", first == second, f"{len(first)} packages, {took_s:.0f} s"
    )
    needed = closure(pins(LOCK.read_text()), parts(pyproject())["run"])
    others = set(first.items()) - {(pin.name, pin.version) for pin in needed}
    checks.check("they are the lock's, and dbelief", {name for name, _ in others} == {"dbelief"}, others)


def _little_shared_memory(checks: Checks) -> None:
    """A whole job in one container, which shares more memory than the 64 MiB of /dev/shm that a container has."""
    job = (
        "{name: wide, model: {layers: [{dense: 60000}, relu, {dense: 10}], loss: softmax_cross_entropy}, "
        "data: {source: digits}, strategy: {name: downpour, batch: 64, rule: {name: adagrad, rate: 0.001}}, "
        "limits: {samples: 4000}, shards: 2, replicas: 2}"
    )
    script = (
        f"cd /tmp && echo '{job}' > job.yaml; dbelief train job.yaml --set output=/tmp/runs > /dev/null; echo code $?; "
        "for log in /tmp/runs/wide/logs/worker-*.log; do "
        "echo lines $(grep -c 'shares memory with shards 0 and 1' $log); done; "
        "df -k /dev/shm | awk 'NR == 2 {print \"size\", $2}'; echo left $(ls /dev/shm | wc -l)"
    )
    confined = ("--rm", "--network", "none", "--tmpfs", "/tmp:size=2g", "--entrypoint", "sh", IMAGE, "-c", script)
    said = run("podman", "run", *confined, timeout_s=600)
    found = [line.split()[-1] for line in said.splitlines() if line.startswith(("code", "lines", "size", "left"))]
    checks.check("a job whose arrays are larger than /dev/shm ends with 0", found[:1] == ["0"], found)
    checks.check("each worker shares memory with both shards", found[1:3] == ["1", "1"], found)
    little = found[3:4] in (["65536"], ["64000"])  # 64 MB, as engines count them
    checks.check("/dev/shm had 64 MB, and nothing is left there", little and found[4:] == ["0"], found)


def _confinement(checks: Checks, project: Project) -> None:
    """What a container could do beyond its part, as far as podman tells."""
    states = project.containers()
    open_ = [
        name for name in VICTIMS if not states[name]["HostConfig"]["ReadonlyRootfs"] or states[name]["EffectiveCaps"]
    ]
    checks.check("root file systems are read-only, and nobody has a capability", not open_, open_ or "")
    held = {name: (project.inside(name, "ls", "/credentials") or "").split() for name in ("worker_1", "ps_1")}
    wanted = {"worker_1": ["ca.crt", "tls.crt", "tls.key", "token"]}
    wanted["ps_1"] = sorted([*wanted["worker_1"], "tokens"])
    checks.check(
        "a worker and a shard have their own credentials alone", held == wanted, held if held != wanted else ""
    )


def _healthy(checks: Checks, project: Project) -> None:
    def all_answer() -> bool:
        asked = ("registry_1", "coordinator_1", "standby_1", "ps_1", "ps_2")
        good = (
            subprocess.run(("podman", "healthcheck", "run", f"{project.name}_{name}"), capture_output=True)
            for name in asked
        )
        return all(done.returncode == 0 for done in good)

    wait_for(all_answer, "every health check to be well", 120.0)
    checks.check("health checks answer, the standby's too", True)
    leads = ("dbelief", "health", "--service", "dbelief.v1.Coordinator")
    led = [name for name in ("coordinator_1", "standby_1") if project.inside(name, *leads) is not None]
    checks.check("one of the two coordinators leads", len(led) == 1, led)


def _ended(checks: Checks, project: Project, killed: tuple[str, ...]) -> float:
    """Wait for the end of all that is ours, and check how; the test accuracy."""

    def all_over() -> bool:
        states = project.containers()
        return not any(states[name]["State"]["Running"] for name in OURS)

    wait_for(all_over, "the job's end", END_S)
    codes = {name: project.containers()[name]["State"]["ExitCode"] for name in OURS}
    checks.check("the job's containers end with 0", set(codes.values()) == {0}, codes if any(codes.values()) else "")
    restarts = {name: project.containers()[name]["RestartCount"] for name in OURS}
    others = {name: count for name, count in restarts.items() if count and name not in killed}
    checks.check("nothing starts again that was not killed", not others, others or "")
    summary = project.summary(JOB)
    accuracy = float(summary["test_accuracy"])
    checks.check(
        f"test accuracy is {FLOOR} or more",
        accuracy >= FLOOR,
        f"{accuracy}, validation {summary['validation_accuracy']}, {summary['wall_s']:.0f} s",
    )
    return accuracy


def _undisturbed(checks: Checks, project: Project) -> None:
    with started(project, *SERVICES):
        _healthy(checks, project)
        _confinement(checks, project)
        told = project.compose(
            "--profile", "tools", "run", "--rm", "-T", "tool", "dbelief", "status", "coordinator:7070", "--json"
        )
        checks.check("the operator's tool hears of the job", f'"{JOB}"' in told)
        wait_for(lambda: project.samples(JOB) > 2 * FURTHER, "samples", 300.0)
        wanted = {"coordinator": 2, "ps": 2, "worker": 4}

        def all_seen() -> dict[str, int] | None:
            up = [labels["job"] for labels, value in project.ask("up") if value == 1]
            seen = {role: up.count(role) for role in wanted}
            return seen if seen == wanted else None

        checks.check("Prometheus sees all targets", wait_for(all_seen, f"targets {wanted}", 60.0) == wanted, wanted)
        pushes = {labels["instance"]: value for labels, value in project.ask("dbelief_ps_pushes_total") if value > 0}
        checks.check("Prometheus has pushes of both shards", len(pushes) == 2, sum(pushes.values()))
        _ended(checks, project, ())
        most = max(value for _, value in project.ask("max_over_time(dbelief_coordinator_samples_total[1h])"))
        checks.check("Prometheus has the job's samples", most > SAMPLES / 2, f"{most:.0f} of {SAMPLES}")


def _killed(checks: Checks, project: Project) -> None:
    took_s = []
    with started(project, *SERVICES):
        for victim in (*VICTIMS, PROMETHEUS):
            begun = project.samples(JOB)
            wait_for(lambda b=begun: project.samples(JOB) > b + FURTHER, "training to go on", 180.0)  # type: ignore[misc]
            at, begun_s = project.samples(JOB), time.monotonic()
            project.kill(victim)
            wait_for(lambda a=at: project.samples(JOB) > a + FURTHER, f"training after {victim}", 180.0)  # type: ignore[misc]
            took_s.append(time.monotonic() - begun_s)
            what = f"{victim} killed at {at} of {SAMPLES} samples: training goes on"
            checks.check(what, True, f"{FURTHER} more {took_s[-1]:.0f} s later")
        checks.check(f"{FURTHER} more samples after each kill", True, f"{min(took_s):.0f} to {max(took_s):.0f} s")
        wait_for(lambda: project.ask("up"), "an answer of the Prometheus that was killed", 60.0)
        checks.check("all were killed before the end", project.samples(JOB) < SAMPLES)
        _ended(checks, project, VICTIMS)
        died = project.summary(JOB)["died"]
        checks.check("the job knows who died", len(died) >= 3, died)


def _stored(checks: Checks, project: Project) -> None:
    """The run folder in a store of objects: a shard and a coordinator are killed, and no volume is shared."""
    with store(project), started(project, "certs", "registry", "coordinator", "standby", "ps", "worker"):
        url = f"{SETTINGS['DBELIEF_OUTPUT']}/digits"

        def told(*command: str) -> str:
            for name in ("coordinator_1", "standby_1"):
                if said := project.inside(name, "dbelief", *command):
                    return said
            return ""

        def samples() -> int:
            found = re.search(r'"samples": ([0-9]+)', told("status", "--json"))
            return int(found[1]) if found else 0

        wait_for(lambda: samples() > 20_000, "samples", 300.0)
        for victim in ("ps_1", "coordinator_1"):
            at = samples()
            project.kill(victim)
            wait_for(lambda a=at: samples() > a + 20_000, f"training after {victim}", 180.0)  # type: ignore[misc]
            checks.check(f"{victim} killed: training goes on", True)
        own = ("coordinator_1", "standby_1", "ps_1", "ps_2", "worker_1", "worker_2", "worker_3")

        def over() -> bool:
            states = project.containers()
            return not any(states[name]["State"]["Running"] for name in own)

        wait_for(over, "the job's end", END_S)
        codes = {name: project.containers()[name]["State"]["ExitCode"] for name in own}
        checks.check(
            "the job's containers end with 0", set(codes.values()) == {0}, codes if any(codes.values()) else ""
        )
        variables = [f"--env={name}={value}" for name, value in SETTINGS.items() if name.startswith("AWS")]
        whole = ("podman", "run", "--rm", f"--network={project.name}_default", "--tmpfs=/tmp", *variables, IMAGE_S3)
        report = run(*whole, "report", url, "--output", "/tmp/report", timeout_s=300)
        checks.check("the report of the run is made from the store", "samples" in report, report.splitlines()[:1])
        states = project.containers()
        folders = {
            name: Path(mount["Source"])
            for name in own
            for mount in states[name]["Mounts"]
            if mount["Destination"] == "/srv/runs"
        }
        # The containers of one service have one volume between them, as podman-compose makes it.
        apart = len({folders[name] for name in ("coordinator_1", "standby_1", "ps_1")}) == 3
        checks.check("coordinators and shards share no volume for run folders", apart, "" if apart else folders)
        left = [str(path) for folder in folders.values() for path in folder.rglob("*")]
        checks.check("nothing is written to those that they have", not left, left or "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-containers", description=__doc__)
    parser.add_argument(
        "--only",
        choices=["image", "locked", "shm", "undisturbed", "killed", "stored"],
        help="this part alone; default: all",
    )
    only = parser.parse_args().only
    if os.geteuid() or shutil.which("podman") is None or "DBELIEF_DATA" not in os.environ:
        print(f"this needs root, podman, and DBELIEF_DATA\n\n{__doc__}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what runs is taken away first
    checks = Checks()
    name = f"dbelief-test-{os.getpid()}"
    parts: dict[str, Callable[[], None]] = {
        "image": lambda: _image(checks),
        "locked": lambda: _locked(checks),
        "shm": lambda: _little_shared_memory(checks),
        "undisturbed": lambda: _undisturbed(checks, Project(name, IMAGE, {})),
        "killed": lambda: _killed(checks, Project(f"{name}-k", IMAGE, {})),
        "stored": lambda: _stored(checks, Project(f"{name}-s", _image_with_s3(), {**DIGITS, **SETTINGS}, [STORED])),
    }
    for part, work in parts.items():
        if only in (None, part):
            print(f"-- {part}", flush=True)
            try:
                work()
            except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                checks.check(part, False, error)
    print(f"{checks.failed} failed" if checks.failed else "all well")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
