"""From a comparison file to the jobs that it runs, each checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dbelief.errors import JobError

from .comparison import OWN, Comparison
from .document import yaml_document
from .document.paths import resolve
from .document.section import LARGEST
from .document.yaml_document import Document
from .job import Job
from .load import checked, text_of

_NEVER = {"every": LARGEST, "keep": "last"}
"""An evaluation would take replicas away from training."""


@dataclass(frozen=True)
class Trial:
    """One job of a comparison; `label` is "" for the run that the others begin with."""

    label: str
    wait_s: float
    job: Job

    @property
    def replicas(self) -> int:
        """How many train."""
        return self.job.replicas

    @property
    def seed(self) -> int:
        """Of initial values and sample order."""
        return self.job.seed

    @property
    def name(self) -> str:
        """Of its run folder."""
        return self.job.name


class ComparisonFile:
    """A comparison, and its jobs.

    Parameters
    ----------
    path
        The YAML file.
    output
        Folder of the run folders.

    Raises
    ------
    JobError
        The file is no comparison, or one of its jobs is none: a line for each problem, with file, line and field.
    """

    def __init__(self, path: Path, output: Path) -> None:
        self._path, self._output = path, output.absolute()
        self._found = yaml_document.read(text_of(path), str(path))
        self._folder = path.absolute().parent
        self.comparison = checked(self._found, self._folder, str(path), Comparison)
        self._base, self._lines = self._read_base()

    def _read_base(self) -> tuple[dict[str, object], dict[yaml_document.Path, int]]:
        """The fields that all jobs have, and their lines."""
        base = self.comparison.base
        if isinstance(base, dict):
            return base, self._below("base")
        file = resolve(base, self._folder)
        self._folder = file.absolute().parent
        found = yaml_document.read(text_of(file), str(file))
        if not isinstance(found.value, dict):
            raise JobError(f"{file}: is no job, as {self._path} says (base)")
        return found.value, {}

    def _below(self, *section: str) -> dict[yaml_document.Path, int]:
        """Lines of the comparison file, by path from a section on."""
        depth = len(section)
        return {at[depth:]: line for at, line in self._found.lines.items() if len(at) > depth and at[:depth] == section}

    def trials(self) -> list[Trial]:
        """All jobs in the order of their runs: seed by seed, so that what disturbs the machine disturbs all alike."""
        every = self.comparison
        return [
            self._trial(label, replicas, wait_s, seed)
            for wait_s in every.compute_wait_s
            for seed in every.seeds
            for label, fields in every.strategies.items()
            for replicas in (every.replicas if every.replicas and "replicas" not in fields else (None,))
        ]

    def warm_starts(self) -> dict[int, Trial]:
        """By seed, the runs that the others begin with; none where there are none."""
        fields = self.comparison.warm_start
        if fields is None:
            return {}
        lines = self._below("warm_start")
        return {
            seed: Trial("", 0.0, self._job("warm_start", fields, lines, _warm(seed), seed))
            for seed in self.comparison.seeds
        }

    def _trial(self, label: str, replicas: int | None, wait_s: float, seed: int) -> Trial:
        fields = dict(self.comparison.strategies[label])
        if replicas is not None:
            fields["replicas"] = replicas
        if self.comparison.warm_start is not None:
            fields["start_from"] = str(self._output / _warm(seed))
        many = fields.get("replicas", self._base.get("replicas", 1))
        name = f"{label}.{many}.{wait_s:g}.{seed}"
        job = self._job(f"strategy {label}", fields, self._below("strategies", label), name, seed)
        return Trial(label, wait_s, job)

    def _job(
        self, where: str, fields: dict[str, object], lines: dict[yaml_document.Path, int], name: str, seed: int
    ) -> Job:
        own = {"name": name, "seed": seed, "output": str(self._output), "evaluate": _NEVER}
        base = {at: line for at, line in self._lines.items() if at[0] not in fields}
        values = {**{key: value for key, value in self._base.items() if key not in OWN}, **fields, **own}
        title = f"{self._path} ({where})"
        job = checked(Document(values, {**base, **lines}), self._folder, title, Job)
        if job.limits.early():
            raise JobError(f"{title}: limits.{job.limits.early()[0]}: nothing is evaluated while a compared job trains")
        if job.grid != (1,):
            raise JobError(f"{title}: grid: compared are models that are not cut")
        return job


def _warm(seed: int) -> str:
    return f"warm-start.{seed}"
