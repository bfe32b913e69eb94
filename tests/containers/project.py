"""The services of deploy/compose.yaml under a name of their own, as podman runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.processes.conftest import wait_for

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
STORED = ROOT / "deploy" / "compose.s3.yaml"


def run(
    *command: str | Path, timeout_s: float = 120.0, check: bool = True, environment: dict[str, str] | None = None
) -> str:
    """Standard output of a command; one that fails raises with what it said."""
    around = os.environ | (environment or {})
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def podman_compose() -> str:
    """The program, beside this Python or on PATH."""
    found = shutil.which("podman-compose", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise FileNotFoundError("no podman-compose: pip install podman-compose")
    return found


class Project:
    """Containers, volumes and a network that end with the `with` block of `started`.

    Parameters
    ----------
    settings
        Variables of deploy/.env.
    files
        Compose files beside deploy/compose.yaml.
    """

    def __init__(self, name: str, image: str, settings: dict[str, str], files: Sequence[Path] = ()) -> None:
        ports = dict.fromkeys(("DBELIEF_PROMETHEUS_PORT", "DBELIEF_PAGE_PORT", "DBELIEF_STANDBY_PAGE_PORT"), "")
        with ExitStack() as stack:  # all at once, so that no two are the same
            for name_of_port in ports:
                free = stack.enter_context(socket.socket())
                free.bind(("127.0.0.1", 0))
                ports[name_of_port] = str(free.getsockname()[1])
        self.name = name
        self._prometheus = f"http://127.0.0.1:{ports['DBELIEF_PROMETHEUS_PORT']}"
        self._settings = {"DBELIEF_IMAGE": image, **ports, **settings}
        self._files = [argument for path in (COMPOSE, *files) for argument in ("-f", str(path))]
        self._command = podman_compose()

    def compose(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Output of podman-compose."""
        command = (self._command, "-p", self.name, *self._files, *arguments)
        return run(*command, timeout_s=timeout_s, environment=self._settings)

    def containers(self) -> dict[str, dict[str, Any]]:
        """What podman knows of each, by its name within the project."""
        own = run("podman", "ps", "-aq", "--filter", f"label=io.podman.compose.project={self.name}").split()
        found = json.loads(run("podman", "inspect", *own)) if own else []
        return {one["Name"].removeprefix(f"{self.name}_"): one for one in found}

    def log(self, container: str) -> str:
        """What it has said."""
        return run("sh", "-c", f"podman logs {self.name}_{container} 2>&1")

    def inside(self, container: str, *command: str) -> str | None:
        """Output of a command in a container; None where it fails there."""
        done = subprocess.run(
            ("podman", "exec", f"{self.name}_{container}", *command), capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    def kill(self, container: str) -> None:
        """SIGKILL to its process; returns once its restart policy has started it again."""
        # By the process: what `podman kill` ends counts as stopped by a person, and stays so.
        before = self.containers()[container]["State"]["Pid"]
        os.kill(before, signal.SIGKILL)

        def again() -> bool:
            state = self.containers()[container]["State"]
            return state["Running"] and state["Pid"] not in (0, before)

        wait_for(again, f"{container} to be started again", 60.0)

    def runs(self) -> Path:
        """Where this machine keeps the volume of run folders."""
        return Path(run("podman", "volume", "inspect", "--format", "{{.Mountpoint}}", f"{self.name}_runs").strip())

    def events(self, job: str) -> list[dict[str, Any]]:
        """The job's events until now."""
        path = self.runs() / job / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def samples(self, job: str) -> int:
        """How many are trained."""
        return max((int(e["samples"]) for e in self.events(job)[-200:] if e["event"] == "progress"), default=0)

    def summary(self, job: str) -> dict[str, Any]:
        """How the job ended."""
        found: dict[str, Any] = json.loads((self.runs() / job / "summary.json").read_text())
        return found

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that the project's Prometheus finds."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._prometheus}/api/v1/query?{query}", timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def _end(self) -> None:
        """All away, whatever state it is in; what podman-compose leaves behind too."""
        with_label = ("--filter", f"label=io.podman.compose.project={self.name}")
        own = run("podman", "ps", "-aq", *with_label).split()
        if own:
            run("podman", "rm", "-f", "-t", "2", *own, check=False)
        run("podman", "pod", "rm", "-f", f"pod_{self.name}", check=False)
        for kind in ("volume", "network"):
            names = run("podman", kind, "ls", "-q").split()
            for name in names:
                if name.startswith(f"{self.name}_"):
                    run("podman", kind, "rm", "-f", name, check=False)


@contextmanager
def started(project: Project, *services: str) -> Iterator[Project]:
    """Bring services up; all of it ends with the block."""
    try:
        project.compose("up", "-d", *services)
        yield project
    finally:
        project._end()
