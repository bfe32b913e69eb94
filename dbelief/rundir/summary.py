"""`summary.json`: the result of a run, in machine-readable form."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dbelief.errors import DataError
from dbelief.process.atomic_file import write_whole

from .json_values import plain

FILE, EARLIER = "summary.json", "summary.earlier.json"
"""The second one is of a run whose training is done, while its last evaluations are repeated."""
_EVALUATING = "closing"


class RoundFigures(BaseModel):
    """Figures of a job in lockstep, over the whole run. A number that is not known is None."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    rounds: int = Field(ge=0, description="rounds that are over")
    pushes_per_round: float | None = Field(description="replicas in a round, mean")
    late_pushes: int = Field(ge=0, description="pushes that came after the end of their round")
    late_age: float | None = Field(description="rounds that these were late, mean")
    sent_per_sample: float | None = Field(description="bytes from replicas to shards")
    received_per_sample: float | None = Field(description="bytes from shards to replicas")
    computing: float | None = Field(description="share of the replicas' time, 0 to 1")


class DelayFigures(BaseModel):
    """Figures of a job with delays."""

    model_config = ConfigDict(extra="allow", frozen=True)

    file: str = Field(description="the delays file")
    events: int = Field(ge=1, description="events in it")
    passes: int = Field(ge=1, description="how often they were begun")
    staleness: list[int] = Field(
        description="pushes by staleness, in classes: 0, 1, 2, 3, 4, and up to 6, 8, 12, 16, 24, 32, 64, 128 and more"
    )


class Summary(BaseModel):
    """Result of a run; further fields are kept. A missing number (or NaN) is None."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    job: str = Field(description="name of the job")
    seed: int = Field(description="seed of the job")
    state: str = Field(
        default="", description="done or failed; closing before the test of a model that is written already"
    )
    reason: str = Field(description="why the run ended, in words")
    trained: bool = Field(default=False, description="whether a limit of the job ended training, so that none is left")
    evaluation_failed: dict[str, str] = Field(
        default_factory=dict,
        description="by data set, why its last evaluation has no result; the model is written, and --resume repeats it",
    )

    test_accuracy: float | None = Field(description="share of right answers on the test set, 0 to 1")
    test_loss: float | None = Field(description="mean loss on the test set")
    validation_accuracy: float | None = Field(description="of the parameters that were exported, 0 to 1")
    validation_loss: float | None = Field(description="of the parameters that were exported")
    test_metrics: dict[str, float] = Field(
        default_factory=dict, description="metrics of the job on the test set, by name"
    )
    validation_metrics: dict[str, float] = Field(
        default_factory=dict, description="the same of the parameters that were exported"
    )

    samples: int = Field(ge=0, description="samples whose gradients were applied")
    samples_per_replica: dict[str, int] = Field(description="the same by replica")
    steps_per_replica: dict[str, int] = Field(default_factory=dict, description="mini-batches by replica")
    pushes_per_replica: dict[str, int] = Field(default_factory=dict, description="pushes by replica")
    bytes_per_replica: dict[str, dict[str, int]] = Field(
        default_factory=dict,
        description="segments that each replica has sent and received, in messages and through shared memory",
    )
    phase_seconds: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="seconds of each replica's computing thread, by phase"
    )
    lease_samples: int = Field(default=0, ge=0, description="samples in a lease of the usual size; 0: no leases")
    processors: dict[str, dict[str, str | float]] = Field(
        default_factory=dict,
        description="by member: its machine, its network, processors that it may use, processor seconds of its process "
        "(used_s) and of all programs of the machine (busy_s) in lived_s seconds, and the shortest time of an answer "
        "from the coordinator (answer_s)",
    )
    epochs: float = Field(ge=0, description="samples over the size of the training set")
    steps: int = Field(ge=0, description="mini-batches computed")
    steps_left_out: int = Field(
        default=0, ge=0, description="of these: left out by a script's GradScaler, as a gradient overflowed"
    )
    pushes: int = Field(ge=0, description="pushes applied")
    pushes_trained_twice: int = Field(ge=0, description="pushes whose samples were leased again after a failure")
    staleness_mean: float | None = Field(description="versions, or with rounds rounds, mean over all pushes")
    rounds: RoundFigures | None = Field(
        default=None,
        description="of a job in lockstep: "
        + ", ".join(f"{name} ({field.description})" for name, field in RoundFigures.model_fields.items()),
    )
    delays: DelayFigures | None = Field(
        default=None,
        description="of a job with delays: "
        + ", ".join(f"{name} ({field.description})" for name, field in DelayFigures.model_fields.items()),
    )

    wall_s: float = Field(ge=0, description="seconds from start to end; of a resumed run, the sum over its processes")
    last_leg_s: float | None = Field(default=None, ge=0, description="seconds since it was resumed last")
    replicas: int = Field(ge=0, description="replicas in the job file")
    shards: int = Field(ge=0, description="shards in the job file")
    members_lost: int = Field(ge=0, description="members that failed or missed heartbeats")
    died: list[str] = Field(
        default_factory=list, description="which ones, in order (by name before a takeover); a coordinator too"
    )
    pushes_lost: int = Field(default=0, ge=0, description="pushes lost with a failed shard")
    residual_lost: float = Field(
        default=0.0, ge=0, description="magnitudes that codecs have left out and never sent, in gradient units"
    )
    parameters: int = Field(ge=0, description="length of the parameter vector")

    @property
    def outcome(self) -> str:
        """Why the run ended, and which evaluations failed, in one line."""
        return outcome_text(self.reason, self.evaluation_failed)

    @property
    def has_model(self) -> bool:
        """Whether the model beside it is the run's result, and not that of an end before the run was resumed."""
        return self.state in ("done", _EVALUATING)

    @property
    def unevaluated(self) -> bool:
        """Whether training is done, and its last evaluations are not."""
        return self.trained and bool(self.evaluation_failed or self.state == _EVALUATING)


def outcome_text(reason: str, failures: Mapping[str, str]) -> str:
    """The reason for which a run ended, and by data set why its last evaluation failed, in one line."""
    failed = [f"the {name} evaluation failed: {why}" for name, why in failures.items()]
    return "; ".join([*filter(None, [reason]), *failed])


def has_ended(run: Path) -> bool:
    """Whether the summary of a run folder says that the run is over; it is there already while the model is tested.

    Raises
    ------
    DataError
        It is no summary.
    """
    path = run / FILE
    return path.exists() and read_summary(path).state != _EVALUATING


def has_model(run: Path) -> bool:
    """Whether training has ended: a model may also remain from an end before the run was resumed."""
    try:
        return read_summary(run / FILE).has_model
    except DataError:
        return False


def set_aside(run: Path, keep: bool) -> None:
    """Remove the summary of a run that is resumed; `keep`: as `EARLIER`, where training is done.

    Else a resume that is interrupted would leave one that does not say why training ended: the next would train on.
    """
    with suppress(DataError):
        if keep and read_summary(run / FILE).trained:
            (run / FILE).replace(run / EARLIER)
    (run / FILE).unlink(missing_ok=True)
    if not keep:
        (run / EARLIER).unlink(missing_ok=True)


def write_summary(path: Path, values: Mapping[str, Any]) -> Summary:
    """Validate `values` and write them, sorted by name; a reader sees the old file or the new one, never a partial one.

    Raises
    ------
    ValueError
        A field of `Summary` is missing or invalid, or a further one cannot be written as JSON.
    WriteFailed
        The file cannot be written.
    """
    summary = Summary.model_validate(plain(values))
    text = json.dumps(summary.model_dump(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode())
    return summary


def read_summary(path: Path) -> Summary:
    """Read a file of `write_summary`.

    Raises
    ------
    DataError
        The file is missing, or is no summary.
    """
    try:
        return Summary.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from error
