"""What a model file holds beside its tensors: the job and the form of its samples, which its use needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dbelief.core.sample_form import SampleForm
from dbelief.errors import DataError
from dbelief.job import Job, parse_job

_NAME, _JOB, _SAMPLES = "job", "job_file", "samples"


def model_metadata(job: Job, samples: SampleForm | None, **more: str) -> dict[str, str]:
    """Metadata of a model file.

    Parameters
    ----------
    samples
        Form of the job's samples; None: it has no data.
    more
        Further entries.
    """
    return {_NAME: job.name, _JOB: job.to_yaml(), _SAMPLES: samples.text if samples is not None else "", **more}


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model file.

    Attributes
    ----------
    job
        The job file's text; "" in a file of an earlier version.
    samples
        None: the job has no data, or the file is of an earlier version.
    about
        What the script of a job said of its samples; empty where it said nothing.
    """

    file: Path
    job: str
    samples: SampleForm | None

    @property
    def about(self) -> Mapping[str, Any]:
        """See the class."""
        return self.samples.about if self.samples is not None else {}

    @classmethod
    def read(cls, file: Path) -> Self:
        """The metadata of this file; its tensors are not read.

        Raises
        ------
        DataError
            It is no safetensors file, or its metadata are damaged.
        """
        from safetensors import SafetensorError, safe_open  # a coordinator writes metadata, and reads none

        try:
            with safe_open(file, framework="numpy") as model:
                held: Mapping[str, str] = model.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{file}: is no safetensors file, or a damaged one ({error})") from error
        try:
            samples = SampleForm.parse(held[_SAMPLES]) if held.get(_SAMPLES) else None
        except ValueError as error:
            raise DataError(f"{file}: metadata {_SAMPLES!r}: {error}") from None
        return cls(file, held.get(_JOB, ""), samples)

    def load_job(self) -> Job:
        """The job, whose relative paths start from the file's folder.

        Raises
        ------
        DataError
            The file is of an earlier version, or of another program.
        JobError
            The text is no job.
        """
        if not self.job:
            raise DataError(f"{self.file}: holds no job: it is of another program, or of an earlier version of dbelief")
        return parse_job(self.job, self.file.absolute().parent, f"the job in {self.file}")
