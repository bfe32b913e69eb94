"""A member of a job as an actor of a Ray cluster: started, followed, signalled and ended from here."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dbelief.errors import RuntimeFailure, UserError
from dbelief.job import Job, variables
from dbelief.launch.child_process import Process
from dbelief.launch.guarded_program import BROKEN, ended
from dbelief.launch.places import WORKER

from .actor import THREADS, MemberActor, MemberStart
from .cluster import RayCluster

LOOK_S = 10.0
"""How often a member that waits for room says so in its log, in seconds."""
ROOM_S = 300.0
"""How long a member waits for room, in seconds."""


class RayProcess:
    """A program that an actor runs: a `Process` of `dbelief.launch.child_process`.

    A thread appends its output to a file, and notices its end.

    Parameters
    ----------
    actor
        Handle of a `MemberActor`, which is ended with the program.
    order
        What it starts.
    credentials
        Ray's reference of the line that the program's guard reads first.
    room
        Describes what the actor waits for until Ray has placed it.

    Attributes
    ----------
    node
        Address of the node where it runs; "" before it has started.
    """

    pid = 0

    def __init__(
        self, actor: Any, order: MemberStart, credentials: Any, room: Callable[[], str], log_file: Path
    ) -> None:
        self._actor, self._order, self._credentials, self._room = actor, order, credentials, room
        self._log_file = log_file
        self._over = threading.Event()
        self._code = BROKEN
        self._lock = threading.Lock()
        self.node = ""
        threading.Thread(target=self._run, name="ray-member", daemon=True).start()

    def poll(self) -> int | None:
        """See `Process`."""
        return self._code if self._over.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        """See `Process`."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired("an actor's program", timeout or 0.0)
        return self._code

    def send_signal(self, number: int, /) -> None:
        """See `Process`; an actor that still waits for room is ended."""
        if self.node:
            self._actor.write.remote(signal.Signals(number).name.removeprefix("SIG").encode() + b"\n")
        else:
            self._end(-number)

    def kill(self) -> None:
        """See `Process`."""
        self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        """End the actor, and with it its program; `code` counts where it is the first."""
        import ray

        with self._lock:
            if self._over.is_set():
                return
            if ray.is_initialized():  # else `ray.kill` would connect again
                ray.kill(self._actor)
            self._code = code
            self._over.set()

    def _run(self) -> None:
        from ray.exceptions import RayError

        code = BROKEN
        try:
            code = self._begin() or self._follow()
        except RayError as error:
            words = in_words(error)
            if not self._over.is_set():  # else it was ended from here
                self._write(f"Error: {words}\n".encode())
            code = UserError.exit_code if "failed to import" in words else BROKEN
        finally:
            self._end(code)

    def _write(self, output: bytes) -> None:
        """Append to the log; where the disk is full it is lost, and the program goes on."""
        with suppress(OSError), open(self._log_file, "ab", buffering=0) as file:
            file.write(output)

    def _begin(self) -> int:
        """Start the program once the actor is placed; the exit code where that cannot be, else 0."""
        import ray

        started, until_s = self._actor.start.remote(self._order), time.monotonic() + ROOM_S
        while not ray.wait([started], timeout=LOOK_S)[0]:
            if time.monotonic() > until_s:
                self._write(f"Error: no room in the Ray cluster within {ROOM_S:g} s for {self._room()}\n".encode())
                return 1
            self._write(f"waits for room in the Ray cluster: {self._room()}\n".encode())
        node, hindered = ray.get(started)
        if hindered:
            self._write(f"Error: node {node}: {hindered}\n".encode())
            return UserError.exit_code
        ray.get(self._actor.write.remote(self._credentials))
        self.node = node
        return 0

    def _follow(self) -> int:
        """Append the program's output to the log until its end; its exit code."""
        import ray

        while True:
            output, code = ray.get(self._actor.follow.remote())
            if code is not None:
                return int(code)
            self._write(output)


class RayMember:
    """Method of starting one member: a `Way` of `dbelief.launch.child_process`.

    Parameters
    ----------
    credentials
        See `RayProcess`.
    file
        See `MemberStart`.
    """

    noise: tuple[str, ...] = ("waits for room",)

    def __init__(self, cluster: RayCluster, job: Job, role: str, name: str, credentials: Any, file: str) -> None:
        self._cluster, self._job, self._role, self._name = cluster, job, role, name
        self._credentials, self._file = credentials, file
        self._number, self._starts = int(name.rpartition("-")[2]), 0
        self._process: RayProcess | None = None

    def start(self, arguments: list[str], log: Path) -> Process:
        """See `Way`."""
        import ray
        from ray.exceptions import RayError

        self._starts += 1
        options = self._cluster.options(self._role, self._number, self._starts > 1)
        options |= {"name": self._cluster.name(self._job.name, self._name), "namespace": self._cluster.namespace}
        try:
            actor = ray.remote(MemberActor).options(max_concurrency=THREADS, **options).remote()
        except (RayError, ValueError) as error:
            raise RuntimeFailure(f"{self._name}: Ray makes no actor: {str(error).splitlines()[0]}") from error
        here = str(Path.cwd()), version("dbelief"), self._file
        order = MemberStart(arguments, *here, "num_gpus" in options, variables(self._job.to_yaml()))
        self._process = RayProcess(actor, order, self._credentials, self._room, log)
        return self._process

    def _room(self) -> str:
        wanted = "a worker" if self._role == WORKER else "a shard"
        return f"{wanted}; {self._cluster.free()}"

    def ask_to_end(self, process: Process) -> None:
        """See `Way`."""
        process.send_signal(signal.SIGTERM)

    def fate(self, code: int) -> tuple[int, str]:
        """See `Way`."""
        node = self._process.node if self._process is not None else ""
        where = f"node {node}" if node else "no node"
        return (1, f"was lost with its actor on {where}") if code == BROKEN else ended(code, where)

    def possible(self) -> bool:
        """See `Way`: Ray places it, or waits until a node has room."""
        return True


def in_words(error: Exception) -> str:
    """An error of Ray in one line: of a method that raised, what it raised; of a traceback within it the last line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
