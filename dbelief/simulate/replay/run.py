"""The run of a job with delays: its run folder, its evaluations, its end and what is shown meanwhile."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dbelief.arrays.backend import Backend, select_backend
from dbelief.checkpoint.safetensors_io import write_model
from dbelief.core.layout import Layout
from dbelief.data import Dataset, Samples
from dbelief.errors import EvaluationFailed, Interrupted, NonFinite, RuntimeFailure, UserError
from dbelief.evaluation.evaluate import Quality, evaluate, measure
from dbelief.evaluation.metrics import JobMetrics, metrics_of
from dbelief.job import Diloco, Job
from dbelief.monitor.format import plural
from dbelief.nn import Model
from dbelief.process.atomic_file import write_whole
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import Interrupt, cause_of, interrupt_event
from dbelief.rundir.events import EventLog
from dbelief.rundir.model_metadata import model_metadata
from dbelief.rundir.place import place_of
from dbelief.rundir.summary import FILE, RoundFigures, Summary, write_summary
from dbelief.training.job_check import assemble_job

from .check import check_delays
from .delays import DelayTrace
from .programs import part_of
from .replayed_job import DelayReplay

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds from one status to the next, at least."""


@dataclass(frozen=True)
class DelayedJob:
    """A job with delays, ready to run.

    Attributes
    ----------
    job
        With as many replicas as the file has.
    file
        The delays file.
    """

    job: Job
    file: Path
    trace: DelayTrace

    @classmethod
    def of(cls, job: Job) -> DelayedJob:
        """Read the delays of a job that has some.

        Raises
        ------
        UserError
            The file is invalid, or not for this job.
        """
        assert job.delays is not None, "checked by the caller"
        file = job.path(job.delays)
        trace = DelayTrace.read(file)
        check_delays(job, trace, str(file))
        if trace.replicas != job.replicas:
            log.info(f"{plural(trace.replicas, 'replica')}, as {file} has them")
        return cls(job.model_copy(update={"replicas": trace.replicas}), file, trace)

    @property
    def description(self) -> str:
        """The delays, in one line."""
        trace = self.trace
        return f"delays: {plural(trace.replicas, 'replica')}, {len(trace):,} events, {trace.pushes:,} of them pushes"

    def run(
        self,
        show: Callable[[Mapping[str, Any]], None] = lambda status: None,
        draw: Callable[[Path, str], None] = lambda folder, title: None,
    ) -> tuple[int, Summary, Path]:
        """Train to the end: the exit code, the summary and the run folder.

        Parameters
        ----------
        show
            Called with the job's status about four times a second: see `LiveView.update`.
        draw
            Draws the pictures of a run folder, with a title; logs what keeps it from that.

        Raises
        ------
        UserError, RuntimeFailure
            Data or model are invalid, the delays do not fit the job, or the run folder cannot be written.
        """
        job, backend = self.job, select_backend(self.job.computes_on)
        data, model, layout, initial, taken = assemble_job(job, backend)
        assert data is not None, "checked"
        for note in data.notes:
            log.warning(note)
        if taken:
            log.info(f"job {job.name} starts from {taken}")
        with ExitStack() as stack:
            interrupted = stack.enter_context(interrupt_event())
            place = place_of(job)
            folder = place.prepare(resume=False)
            stack.callback(place.release)
            write_whole(folder / "job.yaml", job.anchored().to_yaml().encode())
            events = stack.enter_context(EventLog(folder / "events.jsonl"))
            stack.enter_context(threadpool_limits(job.threads))  # as in replicas: it decides bits of BLAS
            replay = DelayReplay(job, self.trace, str(self.file), data, model, layout, initial, backend)
            run = _ReplayRun(self, replay, data, model, layout, backend, folder, events, show)
            summary = run.to_end(interrupted)
            events.close()
            draw(folder, job.name)
        stopped = interrupted.is_set() and summary.state == "done" and not summary.trained
        failed = RuntimeFailure.exit_code if summary.state == "failed" else 0
        code = Interrupted.exit_code if stopped else failed
        return code or (EvaluationFailed.exit_code if summary.evaluation_failed else 0), summary, folder


@dataclass
class _ReplayRun:
    """A run in progress.

    Attributes
    ----------
    kept
        Parameters of the best evaluation, by the name that progress has for them.
    """

    delayed: DelayedJob
    replay: DelayReplay
    data: Dataset
    model: Model
    layout: Layout
    backend: Backend
    folder: Path
    events: EventLog
    show: Callable[[Mapping[str, Any]], None]
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    state: str = "ready"
    reason: str = ""
    trained: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=runtime.monotonic)
    shown_s: float = -math.inf

    def __post_init__(self) -> None:
        self.job, self.progress = self.delayed.job, self.replay.training.progress
        assert self.data.form is not None, "of its samples"
        self.metrics: JobMetrics | None = metrics_of(self.job, self.data.form)
        if self.metrics is not None:
            self.metrics.check(self.model)
        self._evaluated: Any = part_of("coordinator", "scheduling.training").Evaluated

    def to_end(self, interrupted: Interrupt) -> Summary:
        """Train, evaluate, and write model and summary."""
        self._become("ready")
        try:
            with self._failing():
                reason = self._train(interrupted)
                self._become("closing", reason)
                self._finish()
                self._become("done")
        finally:
            summary = self._write_summary()
            self._show()
        return summary

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Have the job fail where training does; errors of the user's are raised again."""
        try:
            yield
        except NonFinite as error:
            self._become("failed", f"{error}, after {self.progress.samples:,} samples; try a lower rate or clip_norm")
        except _Diverged as error:
            self._become("failed", str(error))
        except BaseException as error:
            self._become("failed", str(error) or type(error).__name__)
            raise

    # -- training ----------------------------------------------------------------------------------------

    def _train(self, interrupted: Interrupt) -> str:
        """Train until a limit is reached; why it has ended."""
        training = self.replay.training
        training.begin(runtime.monotonic())
        try:
            for _ in self.replay.run():
                if self.replay.trouble:
                    raise _Diverged(self.replay.trouble)
                if self.replay.warm_start_ended():
                    self.events.write("warm_start", samples=self.progress.samples)
                now_s = runtime.monotonic()
                if now_s - self.shown_s >= LOOK_S:
                    self._look(now_s)
                if interrupted.is_set():
                    log.info(f"{cause_of(interrupted)}: stopping")
                    return f"stopped by {cause_of(interrupted)}"
                enough = self._evaluate("validation") if self.progress.evaluation_due() else None
                reason: str = enough or training.reason_to_close(now_s)
                if reason:
                    self.trained = True
                    return reason
        finally:
            self.replay.close()
        raise AssertionError("the last push reaches the limit of samples")

    def _look(self, now_s: float) -> None:
        """Log the progress, and show it."""
        self.shown_s, p = now_s, self.progress
        rounds = {"rounds": p.rounds} if p.rounds else {}
        figures = {"samples": p.samples, "epoch": self._epoch, "loss": p.loss, "staleness": p.staleness, **rounds}
        self.events.write("progress", **figures, samples_per_s=self._speed, members=self.job.replicas)
        self._show()

    # -- evaluations and result --------------------------------------------------------------------------

    def _evaluate(self, name: str, values: np.ndarray | None = None) -> str | None:
        """Evaluate the parameters on a set; a reason to stop, if any."""
        split = self.data.validation if name == "validation" else self.data.test
        assert split is not None, f"there is no {name} data"
        values = self.replay.shards.values() if values is None else values
        loss, accuracy, metrics = self._quality(values, split)
        new = self._evaluated(loss, accuracy, self.progress.samples, dict(metrics))
        figures = {"set": name, "samples": new.samples, "loss": loss, "accuracy": accuracy, "metrics": dict(metrics)}
        self.events.write("evaluation", **figures)
        if name == "test":
            self.progress.test = new
            return None
        if not math.isfinite(loss):
            raise _Diverged(f"diverged: the validation loss is {loss} after {new.samples} samples; try a lower rate")
        keep_as, reason = self.progress.evaluated(new)
        if keep_as:
            self.kept = {keep_as: values}
            self.progress.record_best(new.kept_as(keep_as))
        why: str | None = reason
        return why

    def _quality(self, values: np.ndarray, split: Samples) -> Quality:
        part = self.layout.part(0)
        views = part.views(self.backend.to_device(values))
        quality = evaluate(self.model, views, split, part, self.backend)
        if self.metrics is None:
            return quality
        return quality._replace(metrics=measure(self.metrics, self.model, views, split, self.backend))

    def _finish(self) -> None:
        """Make the last evaluations, and write the model."""
        last = self.progress.last
        if self.trained and self.data.validation is not None and (last is None or last.samples < self.progress.samples):
            self._try("validation")
        best = self.progress.best if self.progress.keep_best else None
        values = self.kept[best.vector] if best is not None else self.replay.shards.values()
        spans = self.layout.segments(self.layout.size)
        parts = ((span, values[span.start : span.stop]) for span in spans)
        write_model(self.folder / "model.safetensors", self.layout, parts, model_metadata(self.job, self.data.form))
        if self.trained and self.data.test is not None:
            self._try("test", values)

    def _try(self, name: str, values: np.ndarray | None = None) -> None:
        """Make a last evaluation; the model is written without it where data or model keep it from that."""
        try:
            self._evaluate(name, values)
        except UserError as error:
            self.failures[name] = str(error)
            self.events.write("evaluation_failed", set=name, reason=str(error))
            log.error(f"{name} evaluation failed: {error}")

    # -- status ------------------------------------------------------------------------------------------

    def _become(self, state: str, reason: str = "") -> None:
        self.state, self.reason = state, reason or self.reason
        self.events.write("state", state=state, reason=reason)

    @property
    def _epoch(self) -> float:
        assert self.data.train is not None, "checked"
        return float(self.progress.samples / len(self.data.train))

    @property
    def _speed(self) -> float:
        return float(self.progress.samples / max(1e-9, runtime.monotonic() - self.began_s))

    def _show(self) -> None:
        p, last = self.progress, self.progress.last
        states = {"ready": "training", "closing": "finishing"}
        state, total = states.get(self.state, self.state), self.replay.training.total
        member = "left" if self.state in ("done", "failed") else "training"
        left_s = (total - p.samples) / self._speed if total and p.samples else None
        rounds = self._rounds()
        self.show(
            {
                "job": self.job.name,
                "state": state,
                "reason": self.reason,
                "samples": p.samples,
                "total_samples": total,
                "epoch": self._epoch,
                "loss": _known(p.loss),
                "validation_accuracy": last.accuracy if last else None,
                "validation_loss": last.loss if last else None,
                "samples_per_s": self._speed,
                "staleness_mean": _known(p.staleness_mean),
                "elapsed_s": runtime.monotonic() - self.began_s,
                "wall_limit_s": self.job.limits.wall_s,
                "eta_s": left_s if self.state == "ready" else None,
                "shards": self.job.shards,
                "rounds": rounds.model_dump() if rounds is not None else None,
                "members": [
                    {
                        "id": number,
                        "role": "worker",
                        "state": member,
                        "samples": p.samples_of(number),
                        "staleness": _known(p.staleness_of(number)),
                    }
                    for number in range(self.job.replicas)
                ],
            }
        )

    def _rounds(self) -> RoundFigures | None:
        if not isinstance(self.job.strategy, Diloco):
            return None
        p, late = self.progress, self.replay.late_pushes
        return RoundFigures(
            rounds=p.rounds,
            pushes_per_round=p.pushes / p.rounds if p.rounds else None,
            late_pushes=late,
            late_age=p.staleness_sum / late if late else None,
            sent_per_sample=None,
            received_per_sample=None,
            computing=None,
        )

    def _write_summary(self) -> Summary:
        p, test, job = self.progress, self.progress.test, self.job
        shown = p.best if p.keep_best and p.best is not None else p.last
        rounds, replicas = self._rounds(), sorted(p.replicas.items())
        lease: Any = job.strategy
        fields = {
            "job": job.name,
            "seed": job.seed,
            "start_from": job.anchored().start_from,
            "state": self.state,
            "reason": self.reason,
            "trained": self.trained and self.state == "done",
            "evaluation_failed": self.failures,
            "test_accuracy": test.accuracy if test else None,
            "test_loss": test.loss if test else None,
            "validation_accuracy": shown.accuracy if shown else None,
            "validation_loss": shown.loss if shown else None,
            "test_metrics": test.measured if test else {},
            "validation_metrics": shown.measured if shown else {},
            "samples": p.samples,
            "samples_per_replica": {str(number): own.samples for number, own in replicas},
            "steps_per_replica": {str(number): own.steps for number, own in replicas},
            "pushes_per_replica": {str(number): own.pushes for number, own in replicas},
            "lease_samples": lease.batch * max(lease.n_fetch, lease.n_push),
            "epochs": self._epoch,
            "steps": p.steps,
            "pushes": p.pushes,
            "pushes_trained_twice": 0,
            "staleness_mean": p.staleness_mean,
            "rounds": rounds.model_dump() if rounds is not None else None,
            "wall_s": runtime.monotonic() - self.began_s,
            "replicas": job.replicas,
            "shards": job.shards,
            "members_lost": self.replay.replicas_lost,
            "parameters": self.layout.size,
            "delays": {
                "file": str(self.delayed.file),
                "events": len(self.delayed.trace),
                "passes": self.replay.passes + 1,
                "staleness": self.replay.staleness.counts,
            },
        }
        return write_summary(self.folder / FILE, fields)


class _Diverged(Exception):
    """Training has diverged; the message says how."""


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
