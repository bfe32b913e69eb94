"""A simulated cluster: starts the programs, injects the plan's faults, restarts what failed, until the job ends."""

from __future__ import annotations

import shutil
import traceback
from bisect import insort
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from coordinator.job.persistence import outcome
from dbelief.errors import DbeliefError
from dbelief.process.atomic_file import use_disk
from dbelief.process.clock import SystemClock
from dbelief.process.runtime import use_runtime
from dbelief.registry import MemoryRegistry
from dbelief.rpc.transport import use_transport
from dbelief.rpc.wire import bulk

from .checks.observer import Observer
from .checks.stored_sets import StoredSets
from .checks.trajectory import TrajectoryWatch
from .models.jobs import COORDINATORS, JOBS
from .models.marks import marker
from .plan.fault import FEWEST, Fault
from .plan.plan import AWAITED, Plan
from .world.direct_connections import named
from .world.disk import SimulatedDisk
from .world.groups import Groups
from .world.local_sockets import LocalSockets
from .world.network import SimulatedNetwork
from .world.outage import Power
from .world.programs import (
    interrupt_of,
    operating_system,
    run_client,
    run_coordinator,
    run_reader,
    run_scale,
    run_script,
    run_shard,
    run_worker,
)
from .world.registry import SimulatedRegistry
from .world.runtime import SimulatedRuntime
from .world.scheduler import Process, Scheduler, Task
from .world.torn import torn_pushes

UNTIL_S = 2.0
"""Longest wait for the message at which a pause ends."""
LIMIT_S = 300.0
"""Virtual seconds after which a job that has not ended is a violation."""
RESTART_S = 0.3
"""Seconds until a process that has failed by itself starts again."""
MAY_FAIL = (
    "is over",
    "did not answer within",
    "no server at",
    "(no answer for",
    "no heartbeat for too long",
    "is fenced",
    "another coordinator leads",
    "another coordinator may lead",
    "shards of the job have joined",
    "stopped while standing by",
    "No space left on device",
    "the registry does not answer",
)
"""Reasons for which a program may end with an error: it, or what it needs, was away for longer than its patience."""
AGAIN = 10
"""Mini-batches after which a fault that had no effect, as its process did not run, begins at another one."""
EVALUATION = 4.0
"""Mean time of an evaluation, in mini-batches."""
SLOW_S = 0.05
"""Mean delay of a message while the network is slow."""
JOB = "simulated"
AT_TARGET = ("kill", "fail", "full", "wall", "signal", "pause")
"""Kinds of faults that begin at a process that runs."""


@dataclass(frozen=True)
class Outcome:
    """What came of a plan.

    Attributes
    ----------
    violations
        Of the invariants; empty: none.
    log
        Starts, ends and faults, each with its virtual time.
    pushes, batches, restores
        Pushes acknowledged, mini-batches computed, shards restored from a snapshot set.
    kinds
        Of the faults that had an effect.
    virtual_s, steps
        Length of the run.
    trace
        Hash of all choices.
    """

    violations: tuple[str, ...]
    log: tuple[str, ...]
    pushes: int
    batches: int
    kinds: tuple[str, ...]
    restores: int
    virtual_s: float
    steps: int
    trace: int


class _GlobalClock(SystemClock):
    """The registry's clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now(self) -> float:
        return self._scheduler.now_s


class Cluster:
    """One simulation.

    Parameters
    ----------
    folder
        An existing folder, in which a folder for this run is made.
    data
        File of `marks.write_data`.
    """

    def __init__(self, plan: Plan, folder: Path, data: Path) -> None:
        self._plan, self._job = plan, JOBS[plan.job]
        self._folder = folder / f"{plan.seed}"
        self._data = data
        self._scheduler = Scheduler(plan.seed, plan.preempt, plan.stall_rare)
        self._observer = Observer(self._scheduler, self._job, lambda address: self._network.process_at(address))
        self._processes: dict[str, Process] = {}
        self._programs: dict[str, Callable[[Process], None]] = {}
        self._log: list[str] = []
        self._due = list(plan.faults)
        self._kinds: list[str] = []
        self._ends: dict[str, Process] = {}  # of the call at whose message a fault begins
        self._batches = self._running = 0
        self._over = False
        self._power = Power(JOB)

    def run(self) -> Outcome:
        """Run to the end of the job, or the first violation."""
        scheduler, observer = self._scheduler, self._observer
        with ExitStack() as stack:
            runtime = SimulatedRuntime(scheduler)
            # Before the runtime is replaced, so that its lock is a real one: a simulated one's holder may be killed.
            self._behind = MemoryRegistry(_GlobalClock(scheduler))
            self._empty = MemoryRegistry(_GlobalClock(scheduler))
            self._registry = SimulatedRegistry(scheduler, self._behind, observer.stored)
            self._groups = Groups(scheduler)
            self._network = SimulatedNetwork(scheduler, self._plan.delay_s, self._plan.far)
            self._make_folder(stack)
            self._disk = SimulatedDisk(scheduler, self._folder)
            stack.enter_context(use_runtime(runtime))
            stack.enter_context(use_transport(self._network))
            stack.enter_context(use_disk(self._disk))
            if self._plan.ways.direct_streams:
                stack.enter_context(named(self._network))
            if self._plan.ways.shared_memory:
                stack.enter_context(LocalSockets(scheduler, self._network).replacing())
            stack.enter_context(operating_system(scheduler, self._registry, self._groups, self._job.report_s))
            stack.enter_context(torn_pushes(scheduler))
            if self._job.longest is not None:
                stack.enter_context(
                    mock.patch.multiple(bulk, LONGEST_PAYLOAD=self._job.longest, FULL_BYTES=self._job.longest)
                )
            stack.enter_context(observer.watching())
            sets = StoredSets(self._job, lambda: not observer.restored, observer.violation, observer.rows)
            stack.enter_context(sets.watching())
            leads = lambda: self._find("coordinator") is runtime.process  # noqa: E731
            trajectory = TrajectoryWatch(observer.copies, leads, observer.violation)
            stack.enter_context(trajectory.watching())
            stack.callback(scheduler.close)
            scheduler.failed = self._task_failed
            marker.process = lambda: runtime.process.number
            marker.compute, marker.evaluate, marker.pushed = self._compute, self._evaluate, observer.rows.pushed
            for name in self._programs:
                self._start(name)
            self._begin_faults()
            if not scheduler.run(LIMIT_S):
                running = [one.name for one in self._processes.values() if one.alive]
                observer.violation(f"the job has not ended; running: {', '.join(running) or 'nothing'}")
            if not observer.violations:
                observer.check_end(self._folder / "run")
                trajectory.check_end(self._folder / "run")
        return Outcome(
            tuple(observer.violations),
            tuple(self._log),
            observer.pushes,
            self._batches,
            tuple(self._kinds),
            observer.restored,
            scheduler.now_s,
            scheduler.steps,
            scheduler.trace,
        )

    def _make_folder(self, stack: ExitStack) -> None:
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        run = self._folder / "run"
        (run / "snapshots").mkdir(parents=True)
        job = self._folder / "job.yaml"
        job.write_text(self._job.text(self._data, self._plan.lease))
        shards = (3 if any(fault.target == "3" for fault in self._plan.faults) else 2) * self._job.replication
        ways = self._plan.ways
        trains = partial(run_client if self._job.clients else run_worker, ways=ways)
        if self._job.tables:
            trains = partial(run_script, ways=ways, tables=self._job.tables)
        coordinator = partial(run_coordinator, job=job, folder=run)
        self._programs |= {
            COORDINATORS[0]: partial(coordinator, resumes=lambda: self._power.resumes(self._behind)),
            COORDINATORS[1]: coordinator,
        }
        self._programs |= {f"shard-{n}": partial(run_shard, ways=ways) for n in range(shards)}
        self._programs |= {f"worker-{n}": trains for n in range(3)}
        self._programs |= {"reader": partial(run_reader, ways=ways)} if self._job.reader else {}

    # -- processes -----------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        running = self._processes.get(name)
        if self._over or (running is not None and running.alive):
            return
        if not self._power.may_start(name, self._behind):
            self._scheduler.at(RESTART_S, partial(self._start, name))
            return
        process = self._processes[name] = self._scheduler.process(name)
        drift = self._plan.drift
        process.rate = 1 + self._scheduler.random.uniform(-drift, drift)
        process.offset_s = self._scheduler.random.uniform(0, 1e4)
        self._running += 1
        self._scheduler.spawn(process, "main", partial(self._main, process))
        self._note(f"{name} starts as process {process.number}")

    def _main(self, process: Process) -> None:
        restarts = failed = True
        try:
            self._programs[process.name](process)
            self._note(f"{process.name} ends")
            failed = False
            restarts = process.interrupt is not None and process.interrupt.is_set()
            if restarts:
                self._observer.left.add(process.name)
        except DbeliefError as error:
            self._note(f"{process.name} fails: {type(error).__name__}: {error}")
            self._observer.check_patience(process, str(error))
            if not any(reason in str(error) for reason in MAY_FAIL):
                self._observer.violation(f"{process.name} fails: {type(error).__name__}: {error}")
        self._over = self._over or bool(outcome(self._behind.read(JOB)))
        restart_s = RESTART_S if restarts or process.name in COORDINATORS else None
        # Not in this task: it does not go on where it is switched after the end of its process.
        self._scheduler.at(0.0, partial(self._exit_once, process, restart_s, failed))

    def _exit_once(self, process: Process, restart_s: float | None, failed: bool) -> None:
        if process.alive:  # else a fault has ended it meanwhile
            self._exit(process, restart_s, failed=failed)

    def _exit(self, process: Process, restart_s: float | None, vanishes: bool = False, failed: bool = True) -> None:
        if failed:
            self._observer.failed.add(process.name)
        self._running -= process.name in self._programs
        self._scheduler.end(process)
        self._network.ended(process, vanishes)
        self._groups.ended(process)
        if self._over and not self._running:
            self._scheduler.stop()
        if process.name in self._programs and restart_s is not None:
            self._scheduler.at(restart_s, partial(self._start, process.name))

    def _task_failed(self, task: Task) -> None:
        if task.process.alive:
            where = traceback.extract_tb(task.error.__traceback__)[-1] if task.error is not None else None
            place = f" ({Path(where.filename).name}, line {where.lineno})" if where else ""
            self._observer.violation(f"{task.process.name}, thread {task.name}: {task.error!r}{place}")

    def _note(self, text: str) -> None:
        self._log.append(f"{self._scheduler.now_s:9.4f} {text}")

    # -- faults --------------------------------------------------------------------------------------------

    def _compute(self, samples: np.ndarray) -> None:
        self._batches += 1
        self._observer.computed[samples] += 1
        self._begin_faults()
        self._scheduler.wait(self._scheduler.random.expovariate(1 / self._plan.batch_s))

    def _evaluate(self) -> None:
        self._scheduler.wait(self._scheduler.random.expovariate(1 / (EVALUATION * self._plan.batch_s)))

    def _begin_faults(self) -> None:
        while self._due and self._due[0].batches <= self._batches:
            fault = self._due.pop(0)
            self._scheduler.at(fault.after_s, partial(self._inject, fault))

    def _inject(self, fault: Fault) -> None:
        if fault.spare and len(self._kinds) >= FEWEST:
            return
        if fault.method:
            self._network.await_message(fault.method, fault.late, partial(self._inject_at_call, fault))
            self._wait(replace(fault, method=""), AWAITED)
        else:
            self._inject_now(fault)

    def _wait(self, fault: Fault, batches: int) -> None:
        """Inject a fault after some more mini-batches."""
        insort(self._due, replace(fault, batches=self._batches + batches), key=lambda one: one.batches)

    def _retarget(self, fault: Fault) -> None:
        """Inject a fault that had no effect again, soon, at processes that run."""
        target, other = fault.target, fault.other
        running = sorted(name for name, process in self._processes.items() if process.alive)
        if fault.kind not in ("both", "outage") and len(running) > 1:
            target, other = self._scheduler.random.sample(running, 2)
        self._wait(replace(fault, method="", target=target, other=other if fault.other else ""), AGAIN)

    def _inject_at_call(self, fault: Fault, client: Process, server: Process) -> None:
        """Inject a fault at a message of a call between these processes."""
        awaiting = [one for one in self._due if replace(one, batches=fault.batches, method=fault.method) == fault]
        if awaiting:  # it has not begun meanwhile
            self._due.remove(awaiting[0])
            self._ends = (
                {fault.target: client, fault.other: server}
                if fault.client
                else {fault.target: server, fault.other: client}
            )
            self._inject_now(fault)
            self._ends = {}

    def _inject_now(self, fault: Fault) -> None:
        if self._over:
            return
        if fault.kind in AT_TARGET:
            process = self._find(fault.target)
            had_effect = process is not None and getattr(self, f"_{fault.kind}")(fault, process)
        else:
            had_effect = getattr(self, f"_{fault.kind}")(fault)
        if had_effect:
            self._kinds.append(fault.kind)
            self._note(str(fault))
        else:
            self._note(f"{fault}: without effect")
            self._retarget(fault)

    def _find(self, name: str) -> Process | None:
        """The running process that a target names."""
        role, _, number = name.partition("-")
        if name in self._ends:
            process: Process | None = self._ends[name]
        elif role in ("leader", "follower"):
            process = self._observer.leaders.get(int(number))
            if role == "follower":
                process = self._observer.followers.get(int(number))
        elif name == "coordinator":
            holder = self._behind.holder(JOB)
            process = self._processes.get(holder[0]) if holder else None
        else:
            process = self._processes.get(name)
        return process if process is not None and process.alive else None

    def _kill(self, fault: Fault, process: Process) -> bool:
        self._note(f"{process.name} is killed")
        self._exit(process, fault.seconds)
        return True

    def _both(self, fault: Fault) -> bool:
        found = (self._find(f"{role}-{fault.target}") for role in ("leader", "follower"))
        processes = {process for process in found if process is not None}
        for process in sorted(processes, key=lambda one: one.number):
            self._note(f"{process.name} is killed")
            self._exit(process, fault.seconds)
        return bool(processes)

    def _fail(self, fault: Fault, process: Process) -> bool:
        lost = self._disk.machine_failed(process)
        self._note(f"the machine of {process.name} fails; lost: {', '.join(lost) or 'nothing'}")
        self._exit(process, fault.seconds, vanishes=True)
        return True

    def _outage(self, fault: Fault) -> bool:
        registry_lost = fault.target == "lost"
        if registry_lost and not self._power.has_set(self._behind):
            return False
        running = [process for process in self._processes.values() if process.alive]
        lost = self._power.fails(running, self._disk, registry_lost)
        self._note(f"all machines fail; lost: {', '.join(lost) or 'nothing'}")
        for process in running:
            self._exit(process, None, vanishes=True)
        if registry_lost:
            self._behind, self._empty = self._empty, MemoryRegistry(_GlobalClock(self._scheduler))
            self._registry.lose(self._behind)
        self._observer.outage(registry_lost)
        for name in self._programs:
            self._scheduler.at(fault.seconds * self._scheduler.random.uniform(1, 2), partial(self._start, name))
        return True

    def _pause(self, fault: Fault, process: Process) -> bool:
        if process.paused:
            return False
        self._note(f"{process.name} is paused")
        self._scheduler.pause(process)
        if fault.until:
            resume = lambda *_: self._scheduler.resume(process)  # noqa: E731
            self._scheduler.at(fault.seconds, partial(self._network.await_message, fault.until, False, resume))
        self._scheduler.at(fault.seconds + bool(fault.until) * UNTIL_S, partial(self._scheduler.resume, process))
        return True

    def _cut(self, fault: Fault) -> bool:
        one, other = self._find(fault.target), self._find(fault.other)
        if one is None or other is None or one is other:
            return False
        self._network.cut(one, other, fault.seconds, fault.both)
        return True

    def _break(self, fault: Fault) -> bool:
        one, other = self._find(fault.target), self._find(fault.other)
        return one is not None and other is not None and self._network.break_calls(one, other) > 0

    def _slow(self, fault: Fault) -> bool:
        self._network.mean_s = SLOW_S
        self._scheduler.at(fault.seconds, partial(setattr, self._network, "mean_s", self._plan.delay_s))
        return True

    def _full(self, fault: Fault, process: Process) -> bool:
        self._disk.full_until_s[process] = self._scheduler.now_s + fault.seconds
        return True

    def _away(self, fault: Fault) -> bool:
        self._registry.away_until_s = self._scheduler.now_s + fault.seconds
        return True

    def _wall(self, fault: Fault, process: Process) -> bool:
        process.wall_s += fault.seconds
        return True

    def _scale(self, fault: Fault) -> bool:
        process = self._scheduler.process("operator")
        self._scheduler.spawn(process, "main", partial(run_scale, int(fault.target)))
        return True

    def _signal(self, _: Fault, process: Process) -> bool:
        interrupt_of(process).set()
        return True
