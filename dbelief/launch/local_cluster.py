"""A complete job with one process per role: on this machine (`dbelief train`), or where a `Site` starts them."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from dbelief.errors import DbeliefError, EvaluationFailed, Interrupted, RuntimeFailure, UserError
from dbelief.job import Job
from dbelief.launch.child_process import (
    ASKED_S,
    BACK_OFF_S,
    RESTARTS,
    ChildProcess,
    describe_exit,
    terminate_all,
)
from dbelief.launch.limits import check_threads
from dbelief.launch.script_failures import ScriptFailures
from dbelief.launch.site import LoopbackSite, Site
from dbelief.monitor.status import to_dict
from dbelief.process.atomic_file import why_unwritable
from dbelief.process.cpu_affinity import available_cores, format_cores, split_cores
from dbelief.process.temporary_folder import temporary_folder
from dbelief.process.terminal.console import Interrupt, cause_of, format_error, interrupt_event
from dbelief.registry import EmbeddedRegistry, embedded_available
from dbelief.rpc.client.coordinator_client import OVER, CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.claim import process_name
from dbelief.rundir.place import place_of
from dbelief.rundir.summary import Summary, has_ended, read_summary
from dbelief.telemetry.trackers import check_usable
from dbelief.url import Url

log = logging.getLogger(__name__)

START_S = 60.0
"""Time limit for the coordinator's start, in seconds."""
LOOK_S = 0.25
SILENT_S = 60.0
"""Longest time without an answer from the coordinator, in seconds."""
SCRIPT_LOG_S = 5.0
"""Seconds for which scripts go on after the job before the launcher says that it waits for them."""
STOPPED = "stopped by "
"""What the reason begins with of a run that a signal has stopped."""
STOP_S = 60.0
"""Time limit for a clean shutdown after Ctrl-C, in seconds."""
_ALL_LEFT = (
    "all scripts have ended, and the job needs more samples: does each loop until its loader is empty, and call "
    "sync.step in place of optimizer.step(), for the rest of an accumulation too?"
)


class Pictures(Protocol):
    """Pictures of the run, which are drawn in this process at its end."""

    def look(self, status: wire.StatusReply) -> None:
        """Prepare for the end; called with each status."""

    def draw(self) -> None:
        """Draw them into the run folder."""


class LocalCluster:
    """Registry, coordinator, shards and workers of one job.

    Parameters
    ----------
    job_file
        File that the job was loaded from, with `overrides` applied: child processes load it again.
    show
        Called a few times a second with the job's status as a mapping, for the live view.
    to_workers
        Additional command-line arguments of the workers.
    page
        Address at which the coordinator serves its status page, `host:port`; None: no page.
    shared_memory
        Whether workers and shards share memory.
    site
        Where all processes run; None: on this machine, on loopback.
    pictures
        Called with the run folder and the job's name; None: the coordinator draws the pictures.
    script
        Command line of the script that each worker runs; none where workers train the job's own model.
    """

    def __init__(
        self,
        job: Job,
        job_file: Path,
        overrides: Mapping[str, str],
        resume: bool,
        show: Callable[[Mapping[str, Any]], None],
        to_workers: Sequence[str] = (),
        page: str | None = None,
        shared_memory: bool = True,
        site: Site | None = None,
        pictures: Callable[[Path, str], Pictures] | None = None,
        script: Sequence[str] = (),
    ) -> None:
        self.job = job
        self._script = ["--", *script] if script else []
        self._joined: set[str] = set()  # names of members
        self._died: set[str] = set()  # of these, those that no restarted process has replaced yet
        self._failures = ScriptFailures()
        self._ended: list[ChildProcess] = []  # coordinators that were asked to end
        self._unevaluated = False
        self._site = site or LoopbackSite()
        self._page = page
        pins = job.pin_cores and job.replicas and isinstance(self._site, LoopbackSite)
        self._parts = split_cores(available_cores(), job.replicas) if pins else []
        for tracker in job.track:
            check_usable(tracker)
        if isinstance(self._site, LoopbackSite):
            check_threads(2 + job.shards * job.replication + job.replicas)
        self._place = place_of(job)
        self.folder = self._place.prepare(resume)
        self._logs = self.folder / "logs"
        try:
            self._logs.mkdir(exist_ok=True)
        except OSError as error:
            self._place.release()
            raise UserError(f"run folder {self.folder}: {error.strerror or error}") from error
        self._job_file = job_file
        self._overrides = overrides
        self._resume = resume
        self._show = show
        apart = ["--no-shared-memory"] * (not shared_memory)
        self._more = {"ps": apart, "worker": [*to_workers, *apart]}
        self._children: list[ChildProcess] = []
        self._shards: dict[int, ChildProcess] = {}
        self._workers: dict[int, ChildProcess] = {}
        self._leaving: dict[int, ChildProcess] = {}
        self._wanted: int | None = None
        self._abandoned: set[str] = set()
        self._registry: EmbeddedRegistry | None = None
        self._registry_restarts = 0
        self._pictures = pictures(self.folder, job.name) if pictures is not None else None

    @property
    def where(self) -> Path | Url:
        """Where the run's files are when it is over."""
        return self._place.where

    def run(self) -> tuple[int, Summary]:
        """Run the job to its end; return the exit code (0 done, 1 failed, the site's if stopped) and the summary.

        Raises
        ------
        UserError, RuntimeFailure
            The job did not begin, or was not closed.
        """
        try:
            code = self._run()
            summary = read_summary(self.folder / "summary.json")
        except BaseException:
            with suppress(DbeliefError):
                self._place.finish(self.folder, keep=True)  # the error names logs there
            raise
        finally:
            self._place.release()
        self._place.finish(self.folder)
        return code, summary

    def _run(self) -> int:
        with ExitStack() as stack:
            interrupted = stack.enter_context(interrupt_event())
            stack.enter_context(self._site.entered(self._logs))
            scratch = stack.enter_context(temporary_folder())
            registry = "memory:"
            if embedded_available():
                data = self._site.registry_folder(self.folder, scratch)
                self._registry = stack.enter_context(EmbeddedRegistry(data))
                registry = self._registry.url
            else:
                log.warning("no embedded registry on this platform: the job's state is in the coordinator only")
            stack.callback(terminate_all, self._children)  # an ExitStack unwinds in reverse: before their resources
            arguments = self._coordinator(registry, scratch, self._site.listen, self._resume)
            coordinator = self._start("coordinator", "coordinator", arguments)
            client = CoordinatorClient(self._address(coordinator, scratch, interrupted), patience_s=2.0)
            stack.callback(client.close)
            # Members have this address; and the registry now holds the initial state, so a restart needs no `--resume`.
            coordinator.arguments = self._coordinator(registry, scratch, client.address, resume=False)
            coordinator.restarts = RESTARTS if registry != "memory:" else 0
            self._start_members(client.address)
            return self._watch(coordinator, client, interrupted)

    def _coordinator(self, registry: str, scratch: Path, listen: str, resume: bool) -> list[str]:
        arguments = ["coordinator", str(self._job_file), "--listen", listen, "--registry", registry]
        arguments += ["--name", process_name()]  # by which it shares the folder that this process has claimed
        arguments += ["--run-folder", str(self.folder), "--ready-file", str(scratch / "address")]
        arguments += ["--no-pictures"] * (self._pictures is not None)
        arguments += [part for name, value in self._overrides.items() for part in ("--set", f"{name}={value}")]
        arguments += ["--page", self._page] if self._page is not None else []
        return [*arguments, *["--resume"] * resume, *self._site.arguments("coordinator")]

    def _start(self, role: str, name: str, arguments: list[str], restarts: int = 0) -> ChildProcess:
        child = ChildProcess(name, arguments, self._logs / f"{name}.log", restarts, self._site.way(role, name))
        self._children.append(child)
        child.start()
        return child

    def _address(self, coordinator: ChildProcess, scratch: Path, interrupted: Interrupt) -> str:
        """The coordinator's address, once it listens."""
        until_s = time.monotonic() + START_S
        while not (scratch / "address").exists():
            if coordinator.code is not None:
                words = coordinator.last_words().removeprefix("Error: ")
                if coordinator.code == UserError.exit_code:
                    raise UserError(words)
                raise RuntimeFailure(f"{self._with_disk(coordinator.fate())}; see {coordinator.log}")
            if interrupted.is_set():
                coordinator.end(ASKED_S)
                raise Interrupted(f"{STOPPED}{cause_of(interrupted)} before the coordinator was up")
            if time.monotonic() > until_s:
                late = f"the coordinator did not come up within {START_S:g} s"
                raise RuntimeFailure(f"{self._with_disk(late)}; see {coordinator.log}")
            self._restart_registry()
            time.sleep(0.02)
        address = (scratch / "address").read_text()
        for line in itertools.takewhile(lambda line: address not in line, coordinator.log_messages()):
            log.info(line)  # what it logs before training starts: damaged snapshot sets
        return address

    def _start_members(self, address: str) -> None:
        for number in range(self.job.shards * self.job.replication):
            self._shards[number] = self._start_member("ps", number, address)
        for number in range(self.job.replicas):
            self._workers[number] = self._start_member("worker", number, address)

    def _start_member(self, role: str, number: int, address: str) -> ChildProcess:
        name = f"{role}-{number}"
        arguments = [role, "--coordinator", address, "--name", name]
        # With replication, shard processes have no fixed numbers: each may serve any shard.
        arguments += ["--number", str(number)] if role == "worker" or self.job.replication == 1 else []
        arguments += ["--record", str(self.folder / "record")] * self.job.record
        arguments += ["--cores", format_cores(self._parts[number])] if self._parts and role == "worker" else []
        arguments += [*self._more[role], *self._site.arguments(role), *(self._script if role == "worker" else [])]
        return self._start(role, name, arguments, RESTARTS)

    def _scale(self, wanted: int, address: str) -> None:
        """Start or end workers to reach the requested number."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        for number in [number for number, child in self._workers.items() if child.name in self._abandoned]:
            self._abandoned.discard(self._workers.pop(number).name)
        for number in sorted(self._workers)[wanted:]:
            log.info(f"worker-{number} is terminated: {wanted} workers are wanted")
            leaving = self._workers.pop(number)
            leaving.ask_to_end()
            self._leaving[number] = leaving
        for number in itertools.count():
            if len(self._workers) >= wanted:
                break
            going = self._leaving.get(number)
            if number not in self._workers and (going is None or going.code is not None):
                log.info(f"worker-{number} is started: {wanted} workers are wanted")
                self._workers[number] = self._start_member("worker", number, address)

    def _scale_shards(self, wanted: int, needed: Collection[int], ended: Collection[int], address: str) -> None:
        """Start shards to reach the requested number; drop those that ended after being decommissioned.

        Parameters
        ----------
        needed, ended
            Numbers of the shards that the job cannot run without, reported by the coordinator after `ended` was
            collected; numbers of the shards whose processes have ended.
        """
        for number in ended:
            child = self._shards[number]
            if number not in needed and (child.code == 0 or number >= wanted * self.job.replication):
                log.info(f"{child.name} has ended: {wanted} shards are wanted")
                del self._shards[number]
        for number in range(wanted * self.job.replication):
            if number not in self._shards:
                log.info(f"ps-{number} is started: {wanted} shards are wanted")
                self._shards[number] = self._start_member("ps", number, address)

    def _watch(self, coordinator: ChildProcess, client: CoordinatorClient, interrupted: Interrupt) -> int:
        """Show the status until the coordinator ends; restart failed processes. Returns the exit code."""
        stop_by_s, asked = 0.0, False
        heard_s = time.monotonic()
        while self._coordinator_running(coordinator):
            if interrupted.is_set() and not asked:  # again, where the coordinator is being restarted
                asked = self._ask_to_stop(client, cause_of(interrupted), first=not stop_by_s)
                stop_by_s = stop_by_s or time.monotonic() + STOP_S
            if stop_by_s and time.monotonic() > stop_by_s:
                of = "of the stop request" if asked else "in which no stop request reached its coordinator"
                raise RuntimeFailure(f"the job did not end within {STOP_S:g} s {of}; it was killed")
            self._restart_registry()
            # Both before the status is requested: it is that of a job in which these had ended.
            ended = [number for number, child in self._shards.items() if child.code is not None]
            left = {child.name for child in self._workers.values() if child.code == 0}
            failed = [child for child in self._workers.values() if child.code not in (None, 0)]
            try:
                status = client.call("Status", wire.StatusRequest(scales=True), patience_s=0.0)
                heard_s = time.monotonic()
                self._show(to_dict(status))
                self._site.look(status, self._shards.values())
                if self._pictures is not None:
                    self._pictures.look(status)
                if status.HasField("wanted_replicas") and status.state == wire.STATE_READY:
                    self._scale(status.wanted_replicas, client.address)
                # With replication no single process is needed: the coordinator detects a shard without any process.
                needed = set(status.needed_shards) if self.job.replication == 1 else set()
                if status.state == wire.STATE_READY:
                    self._scale_shards(status.wanted_shards, needed, ended, client.address)
                self._note_members(status)
                if status.state in OVER:
                    self._end_early(coordinator, status)
                else:
                    self._restart_failed(client, needed, ended, left, status.state, failed)
            except DbeliefError as error:  # if the coordinator has just ended, the loop's condition detects that
                if time.monotonic() - heard_s > SILENT_S:
                    raise RuntimeFailure(
                        f"the coordinator runs and does not answer: {error}; see {coordinator.log}"
                    ) from error
            coordinator.wait(LOOK_S)
        if not has_ended(self.folder):
            terminate_all(self._children, grace_s=0.0)  # no coordinator notifies them of the end
            hint = "; `--resume` continues from its last snapshot set" if (coordinator.code or 0) < 0 else ""
            raise RuntimeFailure(f"{self._with_disk(f'the {coordinator.fate()}')}; see {coordinator.log}{hint}")
        self._draw_pictures()
        self._wait_for_scripts(interrupted)
        return self._exit_code(coordinator, interrupted)

    def _exit_code(self, coordinator: ChildProcess, interrupted: Interrupt) -> int:
        """Exit code of a run that has ended, by its summary where the coordinator was killed after that."""
        summary, code = read_summary(self.folder / "summary.json"), coordinator.code or 0
        if code not in (0, RuntimeFailure.exit_code, EvaluationFailed.exit_code):
            log.warning(f"the {coordinator.fate()}, when the run had ended")
            done = EvaluationFailed.exit_code if summary.evaluation_failed else 0
            code = done if summary.state == "done" else RuntimeFailure.exit_code
        stopped = interrupted.is_set() and (not code or summary.reason.startswith(STOPPED))
        return self._site.stopped if stopped and code != EvaluationFailed.exit_code else code

    def _end_early(self, coordinator: ChildProcess, status: wire.StatusReply) -> None:
        """End a coordinator that waits for workers to leave which have ended, and are its only ones."""
        own = {child.name for child in self._workers.values()}
        others = {member.name for member in status.members if member.role != wire.ROLE_SHARD} - own
        if others or self._leaving or coordinator in self._ended:
            return
        if all(child.code is not None for child in self._workers.values()):
            self._ended.append(coordinator)  # a second signal would be its end at once
            coordinator.ask_to_end()

    def _with_disk(self, fate: str) -> str:
        """A process's end, with the reason why nothing can be written into the run folder, where that is so."""
        reason = why_unwritable(self.folder)  # the process's own log has no room for it then
        return f"{fate} ({reason})" if reason and reason.rpartition(": ")[2] not in fate else fate

    def _note_members(self, status: wire.StatusReply) -> None:
        self._joined |= {member.name for member in status.members}
        present = {member.name for member in status.members if member.state != "died"}
        self._died = {member.name for member in status.members} - present

    def _wait_for_scripts(self, interrupted: Interrupt) -> None:
        """Wait until the scripts have ended, however long: they may go on after the job. Ctrl-C ends the wait.

        One that has not joined has nothing to go on with, and is terminated.
        """
        for child in self._workers.values() if self._script else ():
            again = child.started > 1 and child.name in self._died
            if again or child.name not in self._joined:
                child.ask_to_end()
        logged_s = time.monotonic() + SCRIPT_LOG_S
        while self._script and not interrupted.is_set():
            left = [child for child in self._workers.values() if child.code is None]
            if not left:
                return
            if time.monotonic() > logged_s:
                log.info(f"the job has ended; waiting for {', '.join(child.name for child in left)} to end")
                logged_s = float("inf")
            left[0].wait(LOOK_S)

    def _draw_pictures(self) -> None:
        """Draw the pictures, where this process does; the job has succeeded without them."""
        try:
            if self._pictures is not None:
                self._pictures.draw()
        except Exception as error:  # matplotlib's own too, as of a broken font
            log.error(f"{format_error(error)}; `dbelief report {self.folder}` draws them later")

    def _coordinator_running(self, coordinator: ChildProcess) -> bool:
        """Whether the coordinator runs, or is restarted because it ended before it closed the run."""
        if reason := self._place.moved():
            terminate_all(self._children, grace_s=0.0)  # what they write now is in the way of the next run
            raise RuntimeFailure(reason)
        closed = has_ended(self.folder)
        if coordinator.code is None or closed:
            return coordinator.code is None
        return not why_unwritable(self.folder) and self._revive(coordinator)  # on a full disk it fails again

    def _restart_registry(self) -> None:
        """Restart the registry if its process ended; its data is on disk.

        Where the disk is full it goes on in memory: the coordinator writes its state again, as after the loss of a
        registry, and only a launcher that is killed needs what is on disk, or `--resume`.
        """
        registry = self._registry
        if registry is None or registry.process.poll() is None:
            return
        fate = f"the registry {describe_exit(registry.process.returncode)}"
        if self._registry_restarts == RESTARTS:
            raise RuntimeFailure(self._with_disk(f"{fate}, after {RESTARTS} restarts"))
        time.sleep(BACK_OFF_S[min(self._registry_restarts, len(BACK_OFF_S) - 1)])
        self._registry_restarts += 1
        full = registry.ended_by_disk() or why_unwritable(self.folder)
        registry.restart(in_memory=bool(full))
        how = f"it goes on in memory, and the job without new snapshot sets: {full}" if full else "started again"
        log.warning(f"{fate}; {how} ({self._registry_restarts} of {RESTARTS} times)")

    def _ask_to_stop(self, client: CoordinatorClient, cause: str, first: bool) -> bool:
        """Request a stop; whether the coordinator has received it. `first`: a failure is logged."""
        try:
            client.call("Stop", wire.StopRequest(reason=f"{STOPPED}{cause}"))
        except DbeliefError as error:
            if first:
                log.warning(f"{cause}: the stop request to the coordinator failed, and is sent again: {error}")
            return False
        log.info(f"{cause}: stopping; where it trains already, leased work is finished and a snapshot set taken")
        return True

    def _restart_failed(
        self,
        client: CoordinatorClient,
        needed: Collection[int],
        ended: Collection[int],
        left: Set[str],
        state: wire.State.ValueType,
        failed: Sequence[ChildProcess] = (),
    ) -> None:
        """Restart failed processes; report to the coordinator if a needed shard, or no worker, can restart.

        `needed`, `ended`: as in `_scale_shards`. `left`: names of the scripts that had ended before `state` was read;
        `failed`: workers that had failed by then.
        """
        if self._script:
            self._failures.note(failed)
            names = [child.name for child in self._workers.values()]
            if reason := self._failures.common(names, self._joined):
                trouble = f"the script fails before it joins the job: {reason}"
                client.call("Report", wire.ReportRequest(trouble=trouble))
                return
        workers = list(self._workers.values())
        alive = [self._revive(child) for child in workers]
        reason = ""
        for number in ended:
            shard = self._shards.get(number)
            if shard is not None and (shard.code == 0 or not self._revive(shard)) and number in needed:
                reason = f"{shard.fate()}; its part of the parameters is gone"
        if self._script and state == wire.STATE_CLOSING and not reason:
            self._close_without_scripts(client, workers)
            return
        if workers and not any(alive):
            reason = f"no worker is left: {workers[-1].fate()}"
        # A script that ends now has reported its last samples, which may be all that the job needed.
        if self._script and workers and left >= {child.name for child in workers}:
            reason = _ALL_LEFT if state == wire.STATE_READY else "all scripts have ended without dbelief.join()"
        if reason:
            client.call("Report", wire.ReportRequest(trouble=reason))

    def _close_without_scripts(self, client: CoordinatorClient, scripts: Sequence[ChildProcess]) -> None:
        """Have a job whose samples are trained end without evaluations, once no script is left to make them."""
        if self._unevaluated or not all(child.code == 0 or child.name in self._abandoned for child in scripts):
            return
        self._unevaluated = True
        failed = next((child for child in scripts if child.code), None)
        if failed is not None:
            client.call("Report", wire.ReportRequest(trouble=f"no script is left to evaluate: {failed.fate()}"))
            return
        log.warning(
            "all scripts have ended, and none made the last evaluation by sync.evaluate: the job ends without it"
        )
        client.call("Stop", wire.StopRequest(reason="no script is left to evaluate"))

    def _revive(self, child: ChildProcess) -> bool:
        """Restart a failed process after its back-off and log it; False where no restarts are left."""
        fate, started = child.fate(), child.started
        alive = child.restart_if_due(time.monotonic())
        if child.started > started:
            self._abandoned.discard(child.name)
            log.warning(f"{fate}; started again ({started} of {child.restarts} times)")
        elif not alive and child.name not in self._abandoned:
            self._abandoned.add(child.name)
            log.warning(f"{fate}; not started again")
        return alive
