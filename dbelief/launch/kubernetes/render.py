"""All objects of a job of one kind, as `dbelief kubernetes render` prints them and `--on kubernetes` applies them."""

from __future__ import annotations

from collections.abc import Sequence

from dbelief.job.document.yaml_document import to_yaml

from .autoscaling import autoscaler
from .description import Description, Object
from .job_set import job_set
from .train_job import train_job
from .workloads import plain


def render(job: Description) -> list[Object]:
    """The objects of a job, of the kind that its `kubernetes` section says; the one that stands for it is the last."""
    kind = job.job.kubernetes.kind
    if kind == "plain":
        *objects, main = plain(job)
        return [*objects, *autoscaler(job), main]
    return job_set(job) if kind == "jobset" else train_job(job)


def written(objects: Sequence[Object]) -> str:
    """Objects as YAML documents."""
    return "---\n".join(map(to_yaml, objects))
