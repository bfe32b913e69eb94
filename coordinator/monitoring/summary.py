"""Summary of a run in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..job.machine import JobMachine
from ..scheduling.batch_method import Sandblaster
from .rounds import round_figures


def summary_of(
    machine: JobMachine, wall_s: float, processors: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Fields of summary.json.

    Parameters
    ----------
    wall_s
        Wall time in seconds over all starts and resumes of the run.
    processors
        Fields of `ProcessorFigures` by member, as last reported.
    """
    progress, job = machine.progress, machine.job
    rounds = round_figures(machine)
    shown = progress.best if machine.shutdown.vector.startswith("best") else progress.last
    return {
        "job": job.name,
        "seed": job.seed,
        "start_from": job.anchored().start_from,
        "state": machine.state.value,
        "reason": machine.reason,
        "trained": machine.shutdown.trained,
        "evaluation_failed": machine.shutdown.failures,
        "test_accuracy": progress.test.accuracy if progress.test else None,
        "test_loss": progress.test.loss if progress.test else None,
        "validation_accuracy": shown.accuracy if shown else None,
        "validation_loss": shown.loss if shown else None,
        "test_metrics": progress.test.measured if progress.test else {},
        "validation_metrics": shown.measured if shown else {},
        "samples": progress.samples,
        "samples_per_replica": {str(n): own.samples for n, own in sorted(progress.replicas.items())},
        "steps_per_replica": {str(n): own.steps for n, own in sorted(progress.replicas.items())},
        "pushes_per_replica": {str(n): own.pushes for n, own in sorted(progress.replicas.items())},
        "bytes_per_replica": {str(n): own.bytes for n, own in sorted(progress.replicas.items()) if own.bytes},
        "phase_seconds": {str(n): own.seconds for n, own in sorted(progress.replicas.items())},
        "lease_samples": machine.lease_samples,
        "processors": {name: dict(figures) for name, figures in processors.items()},
        "epochs": machine.epoch,
        "steps": progress.steps,
        "steps_left_out": progress.steps_left_out,
        "pushes": progress.pushes,
        "pushes_trained_twice": machine.training.pushes_twice,
        "staleness_mean": progress.staleness_mean,
        "rounds": rounds.model_dump() if rounds is not None else None,
        "wall_s": wall_s,
        "replicas": job.replicas,
        "shards": len(machine.members.needed),
        "members_lost": machine.failures.total(),
        "died": list(machine.failures.elements()),
        "pushes_lost": progress.lost,
        "residual_lost": progress.residual(),
        "parameters": machine.layout.size if machine.layout else 0,
        **({"last_leg_s": wall_s - machine.earlier_wall_s} if machine.earlier_wall_s else {}),
        **(_of_batch(machine.training.batch) if machine.training.batch is not None else {}),
    }


def _of_batch(batch: Sandblaster) -> dict[str, Any]:
    """Fields of a batch method only; loss and gradient are those at the parameters, on the last batch."""
    return {
        "iterations": batch.method.iterations,
        "evaluations": batch.method.evaluations,
        "loss": batch.method.value,
        "gradient_norm": batch.gradient_norm,
        "backups_launched": batch.backups[0],
        "backups_won": batch.backups[1],
    }
