"""The job: every field of a job file that is not a section of its own file."""

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from .document.paths import anchor, resolve
from .document.section import (
    MOST_MEMBERS,
    Count,
    Members,
    Name,
    Natural,
    PathOrUrl,
    PathText,
    Place,
    Positive,
    Section,
    Several,
    Whole,
    refusal,
)
from .document.yaml_document import to_yaml
from .kubernetes import Kubernetes
from .limits import Divergence, Evaluate, Limits
from .metrics import OF_CLASSES, OwnMetric, name_of
from .models.autoencoder import AutoencoderModel, StacksModel
from .models.model import Model, PythonModel, ScriptModel
from .scale import Scaling
from .schedule import ConstantSchedule, CosineSchedule, PolySchedule, Schedule
from .sources import Data, NoData, ScriptData, lacks_validation
from .strategies.diloco import Diloco
from .strategies.downpour import Downpour
from .strategies.elastic import Elastic
from .strategies.rules import AddRule
from .strategies.sandblaster import Sandblaster
from .strategies.strategy import Strategy
from .strategies.synchronous import SyncSgd
from .streamed_sources import BagsData
from .table_models import misfit_of_layers, misfit_with_bags
from .tables import TableSection, check_caches, check_tables
from .wire import Wire


class Snapshots(Section):
    """Snapshots of all shards, whenever one of the conditions holds; one more is written at the end."""

    every_s: Positive | None = Field(default=30.0, description="Seconds from one to the next; null for none by time")
    every_iterations: Count | None = Field(
        default=None, description="Iterations of a batch method from one to the next; null for none by iterations"
    )
    keep: Annotated[Whole, Field(ge=1, le=1000)] = Field(default=2, description="Snapshot sets kept on disk")


class Deadlines(Section):
    """Timeouts."""

    beat_s: Positive = Field(default=5.0, description="Heartbeat timeout of a member in seconds")
    lease_s: Positive = Field(default=3.0, description="Heartbeat timeout of a replicated shard, in seconds")
    progress_s: Positive = Field(
        default=60.0, description="Seconds without an acknowledged segment after which a call is aborted"
    )
    join_s: Positive = Field(
        default=120.0, description="Seconds until all shards and the first replica must have joined"
    )


def _two_axes(grid: tuple[int, ...]) -> tuple[int, ...]:
    if len(grid) > 2:
        raise refusal("", f"must be [n] or [rows, columns], not {len(grid)} numbers")
    return grid


def _not_for_scripts(job: "Job") -> tuple[str, str] | None:
    """Field of a job for scripts that does not fit one, and the reason; None where all do."""
    strategy = job.strategy
    if isinstance(strategy, Sandblaster):
        return "strategy.name", "must not be sandblaster with a script, whose loop trains mini-batches"
    if strategy.grouped:
        advice = "form: shards" if isinstance(strategy, SyncSgd) else "form: 1"
        return "strategy.form", f"needs {advice} with a script, whose steps are not taken in a group of workers"
    differences = isinstance(strategy, Downpour) and isinstance(strategy.rule, AddRule)
    if isinstance(strategy, Downpour) and not differences and (strategy.n_push, strategy.n_fetch) != (1, 1):
        return "strategy.n_push", "and n_fetch must be 1 with a script: it calls sync.step once in so many mini-batches"
    if differences and strategy.n_push != strategy.n_fetch:
        return "strategy.n_fetch", f"must be n_push, {strategy.n_push}, with rule add: what is pushed is a difference"
    if differences and strategy.staleness_aware:
        return "strategy.staleness_aware", "must be false with rule add: differences are not scaled"
    if isinstance(strategy, Downpour) and (strategy.literal or strategy.local_rate is not None):
        return "strategy", "must have no literal and local_rate with a script"
    if isinstance(strategy, Downpour) and strategy.overlap and not differences:
        return "strategy.overlap", "needs rule add with a script: the script steps while a difference travels"
    if getattr(strategy, "clip_norm", None) is not None:
        return "strategy.clip_norm", "must be null with a script, which clips its gradients itself"
    if isinstance(strategy, Elastic) and (strategy.momentum is not None or strategy.turns):
        return "strategy.name", f"must not be {strategy.name} with a script, whose optimiser steps"
    if job.record:
        return "record", "must be false with a script: its loop is not replayed"
    if math.prod(job.grid) != 1:
        return "grid", f"must be [1] with a script, not {list(job.grid)}"
    return None


class Job(Section):
    """A job file, checked.

    `folder` is not a field: it is the folder that relative paths start from.
    """

    name: Name = Field(description="Name of the run's folder and of the job in the registry")
    model: Model = Field(description="What is trained: layers, or an object in a Python file")
    data: Data = Field(description="What it is trained on")
    strategy: Strategy = Field(description="How it is trained")
    schedule: Schedule = Field(
        default_factory=lambda: ConstantSchedule(kind="constant"),
        description="Learning rate by samples seen",
    )
    tables: dict[Name, TableSection] = Field(
        default_factory=dict,
        description="Rows by key on the shards, by name of the table: embeddings of a script, or of layers",
    )
    wire: Wire = Field(default_factory=Wire, description="How numbers travel between replicas and shards")
    limits: Limits = Field(default_factory=Limits, description="When the job ends")
    evaluate: Evaluate = Field(default_factory=Evaluate, description="Evaluation while training")
    track: Annotated[tuple[Literal["tensorboard", "mlflow"], ...], Field(strict=False)] = Field(
        default=(), description="Trackers of experiments that get curves, pictures and the model"
    )
    divergence: Divergence = Field(default_factory=Divergence, description="When a rising loss stops the job")
    grid: Annotated[Several[Members], AfterValidator(_two_axes)] = Field(
        default=(1,),
        description="Ranks of a replica, over which its model is cut: [n], or [rows, columns] for images",
        json_schema_extra={"minItems": 1, "maxItems": 2},
    )
    shards: Annotated[Whole, Field(ge=1, le=256)] = Field(
        default=1,
        description="Parameter servers, a number; on one machine, more than one costs small steps more than it gains",
    )
    replication: Annotated[Whole, Field(ge=1, le=2)] = Field(
        default=1,
        description="Copies of each segment: with 2 each shard has a follower, and no acknowledged push is lost when "
        "one of both fails; with 1 a shard that fails loses the pushes since the last snapshot set",
    )
    replicas: Annotated[Whole, Field(ge=0, le=MOST_MEMBERS)] = Field(default=1, description="Model replicas, a number")
    scale: Scaling = Field(
        default=None,
        description="auto, or bounds: the number of workers follows the measured throughput; null: it stays",
    )
    seed: Natural = Field(default=0, description="Seed of initial values and sample order")
    start_from: PathOrUrl | None = Field(
        default=None,
        description="Folder, or URL, of a run whose result training starts from; null for the model's own initial "
        "values",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where replicas compute")
    threads: Members = Field(default=1, description="BLAS threads per replica")
    pin_cores: bool = Field(
        default=False,
        description="Where `dbelief train` starts all replicas: each keeps to its share of the machine's cores, "
        "with a BLAS thread for each, whatever `threads` says",
    )
    delays: PathText | None = Field(
        default=None,
        description="File of the order in which replicas fetch and push: one process trains in that order, as its "
        "asynchronous replicas would, of which the file has the number; null trains with a process for each",
    )
    record: bool = Field(
        default=False, description="Log the order in which pushes arrive, so that the run can be replayed"
    )
    snapshots: Snapshots = Field(default_factory=Snapshots, description="Snapshots of the shards")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="Timeouts")
    kubernetes: Kubernetes = Field(
        default_factory=Kubernetes, description="What Kubernetes makes the job's pods of, where it runs there"
    )
    output: Place = Field(
        default=Path("runs"),
        description="Folder of run folders, relative to the current directory; or a URL, s3://BUCKET/PREFIX, where "
        "processes share no folder",
    )

    _folder: Path = PrivateAttr(default_factory=Path)

    def model_post_init(self, context: object) -> None:
        """Take the folder from the validation's context."""
        if isinstance(context, dict):
            self._folder = context["folder"]

    @model_validator(mode="after")
    def _pushes_have_an_order(self) -> Self:
        name, ranks = self.strategy.name, math.prod(self.grid)
        if self.record and ranks != 1:
            raise refusal("record", f"must be false with a model over {ranks} ranks: it is not replayed")
        if self.record and not self.strategy.locked:
            raise refusal("record", f"must be false with {name}: pushes that run side by side have no order to replay")
        if self.replication > 1 and not self.strategy.locked:
            raise refusal("replication", f"must be 1 with {name}: pushes that run side by side cannot be done again")
        return self

    @model_validator(mode="after")
    def _ends(self) -> Self:
        limits, strategy = self.limits, self.strategy
        own = isinstance(strategy, Sandblaster) and strategy.ends
        if not own and limits.epochs is None and limits.samples is None and limits.wall_s is None:
            also = ", or one of strategy's own," if isinstance(strategy, Sandblaster) else ","
            raise refusal("limits", f"needs at least one of epochs, samples, wall_s{also} or the job would never end")
        return self

    @model_validator(mode="after")
    def _there_is_data(self) -> Self:
        if isinstance(self.data, NoData) and self.limits.epochs is not None:
            raise refusal("limits.epochs", "there is no epoch where data.source is none; give samples or wall_s")
        early = self.limits.early()
        if early and lacks_validation(self.data):
            raise refusal(f"limits.{early[0]}", "needs validation data, and the data section gives none")
        if isinstance(self.data, NoData) and self.replicas:
            raise refusal(
                "replicas", "must be 0 where data.source is none: programs with loops of their own bring the gradients"
            )
        return self

    @model_validator(mode="after")
    def _a_batch_method_has_data(self) -> Self:
        if isinstance(self.strategy, Sandblaster):
            if isinstance(self.data, NoData):
                raise refusal("strategy.name", "sandblaster needs data: its batches are cut in portions for replicas")
            if self.record:
                raise refusal("record", "must be false with sandblaster: there is no order of pushes to replay")
        if isinstance(self.strategy, SyncSgd) and self.record:
            raise refusal("record", f"must be false with {self.strategy.name}: there is no order of pushes to replay")
        if self.strategy.grouped and math.prod(self.grid) != 1:
            raise refusal("grid", f"must be [1] with {self.strategy.name} among the workers, not {list(self.grid)}")
        if isinstance(self.strategy, Diloco) and self.strategy.quorum is not None and math.prod(self.grid) != 1:
            raise refusal("grid", f"must be [1] with strategy.quorum, not {list(self.grid)}: ranks have one clock")
        if isinstance(self.strategy, Elastic) and self.strategy.grouped and self.record:
            form = f"{self.strategy.name} in form {self.strategy.form}"
            raise refusal("record", f"must be false with {form}: there is no order of exchanges to replay")
        if not isinstance(self.strategy, Sandblaster) and self.snapshots.every_iterations is not None:
            raise refusal("snapshots.every_iterations", "needs a batch method: strategy.name sandblaster")
        return self

    @model_validator(mode="after")
    def _metrics_have_outputs(self) -> Self:
        names = [name_of(metric) for metric in self.evaluate.metrics]
        for name in self.limits.validation_metrics:
            if name not in names:
                listed = ", ".join(names) or "none"
                raise refusal("limits.validation_metrics", f"must name metrics of evaluate.metrics ({listed}): {name}")
        script = isinstance(self.model, ScriptModel)
        for metric in self.evaluate.metrics:
            returned = isinstance(metric, OwnMetric) and metric.python is None
            if script and not returned:
                raise refusal(
                    "evaluate.metrics",
                    f"must be {{name: {name_of(metric)}, better: ...}} with a script, whose score returns the value",
                )
            if returned and not script:
                raise refusal("evaluate.metrics", f"must have python, file.py:function, for {name_of(metric)}")
        if names and isinstance(self.data, NoData):
            raise refusal("evaluate.metrics", "must be [] where data.source is none: nothing is evaluated")
        if names and isinstance(self.model, AutoencoderModel | StacksModel):
            raise refusal("evaluate.metrics", "must be [] with autoencoders: they have no outputs to compare with")
        if self.evaluate.best_by is not None and lacks_validation(self.data):
            raise refusal("evaluate.best_by", "needs validation data, and the data section gives none")
        if getattr(self.model, "loss", None) == "one_vs_all":
            for name in names:
                if name in OF_CLASSES:
                    raise refusal(
                        "evaluate.metrics", f"must not have {name} with loss one_vs_all, which gives no probabilities"
                    )
        if names and not script and math.prod(self.grid) != 1:
            raise refusal("evaluate.metrics", "must be [] where grid cuts the model: no rank has all its outputs")
        return self

    @model_validator(mode="after")
    def _workers_can_be_scaled(self) -> Self:
        if self.scale is None:
            return self
        why = self.scale.misfit(
            self.replicas, isinstance(self.strategy, Sandblaster), self.pin_cores, self.kubernetes.scale is not None
        )
        if why is not None:
            raise refusal(*why)
        return self

    @model_validator(mode="after")
    def _a_script_brings_both(self) -> Self:
        brings_model, brings_data = isinstance(self.model, ScriptModel), isinstance(self.data, ScriptData)
        if brings_model != brings_data:
            one, other = ("model", "data") if brings_model else ("data", "model")
            raise refusal(other, f"must have source: script as {one} has: a script brings its module and its data")
        rule = getattr(self.strategy, "rule", None)
        inner = isinstance(self.strategy, Diloco) and self.strategy.inner
        if inner and brings_model:
            raise refusal("strategy.inner", "must be null with a script, which makes its own steps")
        if (inner is None or isinstance(inner, AddRule)) and not brings_model:
            raise refusal("strategy.inner", "must be given: the rule of a replica's own steps; add is for scripts")
        if not brings_model:
            if isinstance(self.strategy, Elastic) and self.strategy.overlap:
                raise refusal(
                    "strategy.overlap", "must be false without a script: exchanges go on beside a step anyway"
                )
            if isinstance(rule, AddRule):
                raise refusal("strategy.rule", "add needs model source: script, which steps with its own optimiser")
            return self
        if why := _not_for_scripts(self):
            raise refusal(*why)
        return self

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if self.tables:
            check_tables(self.strategy, self.model, self.start_from)
            check_caches(self.strategy, self.tables)
        why = misfit_of_layers(self.model, self.data, self.tables)
        if why is None and isinstance(self.data, BagsData):
            why = misfit_with_bags(self.strategy, self.device, math.prod(self.grid), self.record, self.keeps_best)
        if why is not None:
            raise refusal(*why)
        return self

    @model_validator(mode="after")
    def _the_wire_fits(self) -> Self:
        strategy, push = self.strategy, self.wire.push
        if self.wire == Wire():
            return self
        if strategy.grouped:
            raise refusal("wire", f"must be left out with {strategy.name} among the workers: reduction.wire is theirs")
        if isinstance(strategy, Sandblaster):
            raise refusal(
                "wire", "must be left out with sandblaster: of a difference of two gradients, 16 bits would leave noise"
            )
        if isinstance(strategy, Elastic) and push.later:
            raise refusal(
                "wire.push",
                f"must be one of fp32, fp16, bf16 with {strategy.name}, not {push.name}: a worker sends its weights, "
                "and what is left out of weights is no step to be made later",
            )
        return self

    @model_validator(mode="after")
    def _falling_rate_has_an_end(self) -> Self:
        endless = self.limits.samples is None and self.limits.epochs is None
        if isinstance(self.schedule, PolySchedule | CosineSchedule) and self.schedule.total is None and endless:
            raise refusal("schedule.total", "must be given where limits has neither samples nor epochs")
        return self

    @model_validator(mode="after")
    def _a_scaled_rate_moves_no_further(self) -> Self:
        strategy, scale = self.strategy, self.schedule.scale
        if isinstance(strategy, Elastic) and strategy.rho is not None and scale is not None:
            rate = strategy.rate * scale.factor(self.samples_in_a_mean)
            if rate * strategy.rho > 1:
                raise refusal("strategy.rho", f"must be at most 1 / rate, scaled to {rate:g}: {1 / rate:g}")
        return self

    @property
    def samples_at_once(self) -> int:
        """Samples behind one gradient: of a mini-batch, or of a batch method's portion."""
        strategy = self.strategy
        return strategy.portion if isinstance(strategy, Sandblaster) else strategy.batch

    @property
    def samples_in_a_mean(self) -> int:
        """Samples that the gradient of one update is the mean of: a mini-batch, or in step those of all replicas.

        Sums of such means (n_push, sync-sgd's gives: sum) do not count: they are a longer step by themselves. Nor does
        what elastic replicas do in step, for each steps by its own mini-batch.
        """
        strategy = self.strategy
        together = isinstance(strategy, Downpour) and strategy.staleness == 0
        together |= isinstance(strategy, SyncSgd) and strategy.gives == "mean"
        return self.samples_at_once * (max(1, self.replicas) if together else 1)

    @property
    def folder(self) -> Path:
        """Folder of the job file: relative paths of data, model and the run to start from start there."""
        return self._folder

    def path(self, text: str) -> Path:
        """Path on this machine of a path in the job file.

        Raises
        ------
        JobError
            It names an environment variable that is not set.
        """
        return resolve(text, self.folder)

    @property
    def computes_on(self) -> Literal["auto", "cpu", "cuda"]:
        """The device, or the CPU for layers that read tables."""
        return "cpu" if isinstance(self.data, BagsData) else self.device

    @property
    def keeps_best(self) -> bool:
        """Whether the parameters of the best evaluation are the result, where there is validation data."""
        return self.evaluate.keep == "best" or (self.evaluate.keep is None and bool(self.limits.early()))

    @property
    def pulls_differences(self) -> bool:
        """Whether bf16 pulls bring differences from those before: in rounds, where all replicas have the same version.

        Where every step has a fetch, it would cost the shards and each step more time than a link gains.
        """
        return self.wire.pull == "bf16" and isinstance(self.strategy, Diloco)

    def anchored(self) -> Self:
        """The same job with paths that do not depend on where its file lies: for a copy in the run folder."""
        sets = ("validation_file", "test_file", "validation_folder", "test_folder")
        paths = ("folder", "file", "train", "validation", "test", *sets)
        data = {name: getattr(self.data, name, None) for name in paths}
        placed: dict[str, object] = {
            name: anchor(text, self.folder) for name, text in data.items() if isinstance(text, str)
        }
        for name in ("files", "validation_files", "test_files"):
            if texts := getattr(self.data, name, None):
                placed[name] = tuple(anchor(text, self.folder) for text in texts)
        fields: dict[str, object] = {"data": self.data.model_copy(update=placed)}
        if isinstance(self.model, PythonModel):
            fields["model"] = self.model.model_copy(update={"python": anchor(self.model.python, self.folder)})
        own = [
            metric.model_copy(update={"python": anchor(metric.python, self.folder)})
            if isinstance(metric, OwnMetric) and metric.python is not None
            else metric
            for metric in self.evaluate.metrics
        ]
        fields["evaluate"] = self.evaluate.model_copy(update={"metrics": tuple(own)})
        if isinstance(self.model, StacksModel):
            trained = tuple(anchor(text, self.folder) for text in self.model.trained)
            fields["model"] = self.model.model_copy(update={"trained": trained})
        for name in ("start_from", "delays"):
            if (text := getattr(self, name)) is not None:
                fields[name] = anchor(text, self.folder)
        return self.model_copy(update=fields)

    def to_yaml(self) -> str:
        """Write all fields, defaults too, as a job file that `parse_job` reads back into an equal job."""
        return to_yaml(self.model_dump(mode="json"))

    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the job's fields as canonical JSON; the folder does not count."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
