"""What the objects of a job have in common, whatever their kind: names, labels, files, counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbelief.errors import UserError
from dbelief.job import Job, OwnMetric, PythonModel, variables
from dbelief.job.document.yaml_document import to_yaml
from dbelief.url import Url

Object = dict[str, Any]
"""An object of Kubernetes, as its YAML has it."""

ROLES = ("coordinator", "ps", "worker")
DATA = "DBELIEF_DATA"
JOB_FILE = "job.yaml"
MOST_BYTES = 1_000_000
"""Of the job's files, which travel as one ConfigMap of at most 1 MiB."""
_LONGEST = 40
"""Characters of a prefix: names of pods, which are of 63 at most, add a role and Kubernetes' own ends."""


@dataclass(frozen=True)
class Description:
    """A job for Kubernetes.

    Attributes
    ----------
    prefix
        Begins the names of all objects.
    files
        By name: the job file, and the Python files that it names, all in one folder of each pod.
    script
        Command line that workers run; none where they train the job's own model.
    resume
        Whether the coordinator resumes from the newest snapshot set.
    environment
        Variables that the job file names, and that this process has.
    """

    job: Job
    prefix: str
    files: Mapping[str, str]
    script: tuple[str, ...] = ()
    resume: bool = False
    environment: Mapping[str, str] | None = None

    @property
    def instance(self) -> str:
        """Value of the label `app.kubernetes.io/instance`, and name of what stands for the whole job."""
        return self.prefix.rstrip("-") or "dbelief"

    @property
    def shards(self) -> int:
        """Processes of the role ps: shards, and their followers."""
        return self.job.shards * self.job.replication

    @property
    def stored(self) -> bool:
        """Whether runs are in a store of objects, so that no pod needs the claim of run folders."""
        return isinstance(self.job.output, Url)

    def name(self, of: str) -> str:
        """Name of an object."""
        return f"{self.prefix}{of}"

    def secret(self, role: str) -> str:
        """Name of the Secret with a role's credentials, a folder of `dbelief certs`."""
        return self.name(f"dbelief-{role}")

    def labels(self, component: str) -> dict[str, str]:
        """Labels by which Services, budgets and policies select a role's pods."""
        return {**self.selector(component), "app.kubernetes.io/part-of": "dbelief"}

    def selector(self, component: str) -> dict[str, str]:
        """The labels that no pod of another job or role has."""
        return {"app.kubernetes.io/component": component, "app.kubernetes.io/instance": self.instance}

    def object(self, api: str, kind: str, name: str, component: str = "", **content: Any) -> Object:
        """An object with the job's labels."""
        labels = {"app.kubernetes.io/instance": self.instance, "app.kubernetes.io/part-of": "dbelief"}
        if component:
            labels["app.kubernetes.io/component"] = component
        space = self.job.kubernetes.namespace
        where = {"namespace": space} if space is not None else {}
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "labels": labels}, **content}


def describe(job: Job, prefix: str | None = None, script: Sequence[str] = (), resume: bool = False) -> Description:
    """The description of a job.

    Parameters
    ----------
    prefix
        None: the job's name, as names of Kubernetes are written, and a hyphen.
    script
        Command line of a script; a first word that names a Python file becomes one of the job's files.

    Raises
    ------
    UserError
        A file is not in the job file's folder, cannot be read, or all are larger than an object may be; the prefix is
        no beginning of a name.
    """
    if prefix is None:
        prefix = re.sub(r"[^a-z0-9-]+", "-", job.name.lower()).strip("-") + "-"
        prefix = prefix if prefix[0].isalpha() else f"job-{prefix}"
    if prefix and not re.fullmatch(r"[a-z][a-z0-9-]*", prefix):
        raise UserError(f"prefix {prefix!r}: names of Services begin with a letter, and have a-z, 0-9 and hyphens")
    if len(prefix) > _LONGEST:
        raise UserError(f"prefix {prefix!r} is longer than {_LONGEST} characters: --set name=SHORTER")
    if job.record:
        raise UserError("record: true needs a run folder that all members share: Kubernetes' workers have none")
    text = to_yaml(job.model_dump(mode="json", exclude_unset=True))  # as people wrote it, for people to read
    files = {JOB_FILE: text, **_files(job)}
    words = tuple(script)
    if words and words[0].endswith(".py"):
        path = Path(words[0])
        files[path.name] = _read(path)
        words = (f"/srv/job/{path.name}", *words[1:])
    if sum(len(text.encode()) for text in files.values()) > MOST_BYTES:
        raise UserError(f"{', '.join(files)}: together above {MOST_BYTES:,} bytes, which no ConfigMap holds")
    named = {name: value for name, value in variables(text).items() if name != DATA}
    return Description(job, prefix, files, words, resume, named)


def _files(job: Job) -> dict[str, str]:
    """The Python files that the job names."""
    named = [job.model.python] if isinstance(job.model, PythonModel) else []
    named += [metric.python for metric in job.evaluate.metrics if isinstance(metric, OwnMetric) and metric.python]
    files = {}
    for text in named:
        name = text.rpartition(":")[0]
        if "/" in name or name == JOB_FILE:
            raise UserError(f"{name}: is not in the folder of the job file, whose pods have that folder's files alone")
        files[name] = _read(job.folder / name)
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
