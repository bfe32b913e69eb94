"""A job for Kubeflow Trainer: a runtime that holds its JobSet, and a TrainJob that runs it.

Source: Kubeflow Trainer v2, trainer.kubeflow.org/v1alpha1. Its runtimes have no parameter servers; this one has.
"""

from __future__ import annotations

from . import job_set
from .description import Description, Object
from .workloads import shared

API = "trainer.kubeflow.org/v1alpha1"
NODE = "node"
"""Trainer's name of the replicated job, and of the container, whose number a TrainJob's `numNodes` sets."""
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def train_job(job: Description) -> list[Object]:
    """The ClusterTrainingRuntime, what pods need, and the TrainJob, last."""
    template = job_set.spec(job, NODE, alone=True)  # Trainer wants the success of all pods of a Job
    del template["ttlSecondsAfterFinished"]  # a TrainJob's JobSet ends with it
    for replicated in template["replicatedJobs"]:
        if replicated["name"] == NODE:
            replicated["template"]["metadata"] = {"labels": {_STEP: "trainer"}}
    runtime = job.object(
        API,
        "ClusterTrainingRuntime",
        job.instance,
        spec={"mlPolicy": {"numNodes": job.job.replicas}, "template": {"spec": template}},
    )
    runtime["metadata"].pop("namespace", None)  # runtimes are of the cluster
    runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"] = "dbelief"
    spec = {"runtimeRef": {"name": job.instance}, "trainer": {"numNodes": job.job.replicas}}
    return [runtime, *shared(job), job_set.queued(job, job.object(API, "TrainJob", job.instance, spec=spec))]
