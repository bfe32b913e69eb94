"""A pusher's session with a job: fetches the job, builds the model, joins, initialises, connects to the shards.

Used by the worker and by custom training loops (`dbelief.connect`), which implement the training themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.arrays.push_source import PushSource
from dbelief.core.absent import of_tensors
from dbelief.core.layout import Layout, Range, RankPart
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult
from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.core.sample_form import SampleForm
from dbelief.data import Dataset, load
from dbelief.errors import ModelError, UserError
from dbelief.evaluation.metrics import JobMetrics, metrics_of
from dbelief.job import AutoencoderModel, Job, PythonModel, ScriptData, ScriptModel, StacksModel, parse_job, place
from dbelief.nn import Model, build_autoencoder, build_network, load_python_model
from dbelief.optim.gradients import check_finite
from dbelief.partition import Grid, layout_of
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient, MemberView
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.payloads import Codecs
from dbelief.rundir.result import read_result
from dbelief.rundir.stored.copies import local_copy
from dbelief.sparse.row_cache import RowCache
from dbelief.sparse.table import SparseTable, number_tables
from dbelief.training.initial_values import InitialValues
from dbelief.training.pretrained import build_stacks

log = logging.getLogger(__name__)

Begin = Callable[[], tuple[np.ndarray | PushSource, str]]
"""Returns what a push of initial values reads, and a description of the run that they are from, or ""."""


def build_model(job: Job, data: Dataset | SampleForm | None, backend: Backend) -> tuple[Model, str]:
    """The job's model, and the sha256 of its inputs besides the job ("" for none): source, or pretrained stacks.

    `data`: of the job, or the form of its samples, from which layers take their sizes.

    Raises
    ------
    ModelError
        Where it cannot be built, or needs sizes from data and there is none.
    """
    if isinstance(job.model, PythonModel):
        return load_python_model(job.path(job.model.file), job.model.object)
    if isinstance(job.model, ScriptModel):
        raise made_by_its_script(job)
    if data is None or data.outputs is None:
        raise ModelError("this model takes its sizes from data, and data.source is none; use a Python model")
    if isinstance(job.model, AutoencoderModel):
        layer = job.model.autoencoder
        return build_autoencoder(layer.eq1, features=data.features, image=layer.image, backend=backend), ""
    if isinstance(job.model, StacksModel):
        return build_stacks(job, job.model, data.features, backend)
    network = build_network(
        job.model.described(),
        job.model.loss,
        features=data.features,
        outputs=data.outputs,
        backend=backend,
        seed=job.seed,
        names=data.names or (),
        tables={name: one.width for name, one in job.tables.items()},
        columns=data.columns or (),
    )
    if network.reads:
        network.attach(partial(_initial_rows, number_tables(job.tables, job.seed, 0)))
    return network, ""


def made_by_its_script(job: Job) -> ModelError:
    """The error of a use of a job whose model is the module of its script, which nothing else can make."""
    rows = ", whose embeddings take dbelief.load_tables(run) in place of the job" if job.tables else ""
    return ModelError(
        f"the model of job {job.name} is the module of its script: run it by `dbelief run`, and use what it has "
        f"trained in Python, by dbelief.load_model(run, into=module){rows}"
    )


def _initial_rows(tables: Sequence[SparseTable], wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of keys by table as they are before the first push."""
    return {table.name: table.initial(wanted[table.name]) for table in tables}


def initial_values(job: Job, model: Model) -> tuple[Layout, np.ndarray]:
    """The model's layout and its initial values as one (N,) float32 vector: same job, same bits.

    Raises
    ------
    ModelError
        Where the model cannot draw them, or its tensors are not float32 arrays.
    """
    values = InitialValues.of(job, model)
    return values.layout, values.flat()


def load_initial_from_run(job: Job, layout: Layout, values: np.ndarray) -> str:
    """Overwrite the (N,) float32 initial values with the result of the run that the job starts from, if any.

    Returns
    -------
    str
        Description of the source; "" where the job starts from no run, and the values are unchanged.

    Raises
    ------
    ModelError
        There is no such run, it has no result yet, or its tensors are not this model's.
    RuntimeFailure
        No snapshot set of it is complete.
    """
    if job.start_from is None:
        return ""
    where = place(job.start_from, job.folder)
    with local_copy(where, parameters=True) as run:
        taken = _read_initial(job, run, layout, values)
    return taken if isinstance(where, Path) else f"{where}: {taken}"


def _read_initial(job: Job, run: Path, layout: Layout, values: np.ndarray) -> str:
    assert job.start_from is not None
    if not (run / "job.yaml").is_file():
        known = "" if Path(job.start_from).is_absolute() else "; a relative path starts from the job file's folder"
        raise ModelError(f"start_from: {run} is no run folder: it holds no job.yaml{known}")
    try:
        return read_result(run, layout, values)
    except UserError as error:
        raise ModelError(f"start_from: {error}") from error


def layout_over_ranks(job: Job, model: Model, whole: Layout) -> Layout:
    """The job's layout; `whole` is the layout of its model on one rank.

    Raises
    ------
    ModelError
        The job partitions its model, and that is not possible; names the layer.
    """
    grid = Grid.of(job.grid)
    return whole if grid.size == 1 else layout_of(model, grid)


@dataclass(frozen=True)
class JobContext:
    """A job as loaded on this machine.

    Attributes
    ----------
    address
        Address of its coordinator, `host:port`.
    """

    address: str
    job: Job
    data: Dataset | None
    backend: Backend

    @classmethod
    def fetch(cls, address: str, patience_s: float, folder: Path | None = None) -> JobContext:
        """Fetch the job from the coordinator, and load its data.

        Parameters
        ----------
        patience_s
            How long to wait for the coordinator to answer.
        folder
            Base of the job's relative paths on this machine; None: the same folder as on the coordinator's machine.

        Raises
        ------
        UserError, RuntimeFailure
            The job's data cannot be loaded on this machine, or the coordinator does not answer.
        """
        with closing(CoordinatorClient(address)) as client:
            client.wait(patience_s)
            status = client.status(job=True)
            job = parse_job(status.job_yaml, folder or Path(status.job_folder), f"job {status.job}")
            # Before the close, which waits up to 0.2 s for the thread that saw the channel become ready.
            data = None if job.data.source in ("none", "script") else load(job.data, job.folder)
        for note in data.notes if data is not None else ():
            log.warning(note)
        return cls(address, job, data, select_backend(job.computes_on))


class OwnModel(NamedTuple):
    """What a session needs of a model that the program computes with itself, instead of one as the job says.

    Attributes
    ----------
    digest
        SHA-256, hexadecimal, of what must be equal in all replicas besides the layout.
    samples
        Form of the program's samples; None: unknown.
    """

    initial: InitialValues
    digest: str
    samples: SampleForm | None = None


@dataclass
class Session:
    """One incarnation of a pusher, or of one rank of it.

    Attributes
    ----------
    model
        The complete model, even if it is to be partitioned over ranks; after that, this rank's part. None: the program
        has its own.
    layout, part
        Layout of all ranks; this rank's part of it.
    sequences
        Sequence number of the last push, by named vector.
    metrics
        What evaluations measure beside loss and accuracy; None: nothing.
    caches
        What is kept of the rows of tables, by table.
    """

    job: Job
    data: Dataset | None
    backend: Backend
    ranks: RankGroup
    model: Model | None
    layout: Layout
    part: RankPart
    client: CoordinatorClient
    member: MemberView
    parameters: ShardedParameterClient
    pusher: Pusher
    sequences: dict[str, int]
    metrics: JobMetrics | None = None
    caches: Mapping[str, RowCache] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        task: JobContext,
        role: wire.Role.ValueType,
        preferred_id: int | None = None,
        name: str | None = None,
        ranks: RankGroup | None = None,
        address: str = "",
        shares_memory: bool = True,
        direct: bool = True,
        brought: OwnModel | None = None,
    ) -> Session:
        """Join the job and wait until it trains; all ranks of a replica do this together.

        Parameters
        ----------
        preferred_id, name
            See `MembershipClient`.
        ranks
            This rank and the others; None: a model that is not partitioned.
        address
            Where other group members reach this process, host:port; "": none.
        shares_memory, direct
            See `ShardedParameterClient`.
        brought
            The caller's model; None: it is built as the job says.

        Raises
        ------
        UserError, RuntimeFailure
            The job's model cannot be built on this machine, its layout differs from the other members', or the
            coordinator does not answer.
        """
        job, ranks = task.job, ranks or SingleRank()
        with ExitStack() as undo:  # on a failure half-way, close every channel and thread, and leave the job
            client = CoordinatorClient(task.address)
            undo.callback(client.close)
            model, source, layout, begin = _model_of(task, ranks, brought)
            form = _form(task, brought)
            metrics = metrics_of(job, form) if form is not None and brought is None else None
            if metrics is not None:
                metrics.check(model)
            part = layout.part(ranks.rank)
            if ranks.rank == 0:
                membership = MembershipClient(
                    client,
                    role,
                    job.name,
                    address,
                    layout=layout,
                    source_digest=source,
                    preferred_id=preferred_id,
                    name=name,
                    train_samples=_train_samples(task),
                    samples=form,
                )
                undo.callback(membership.leave, "could not begin")
                member: MemberView = _placed(membership, ranks, job.deadlines.join_s)
            else:
                member = _wait_for_placement(client, role, ranks)
            pusher = Pusher(member.id, member.incarnation, ranks.rank)
            own = None if ranks.size == 1 else (part.start, part.stop)
            parameters = _parameters(job, member, pusher, own, shares_memory, direct, layout.starts)
            undo.callback(parameters.close)
            shared = job, task.data, task.backend, ranks
            session = cls(*shared, model, layout, part, client, member, parameters, pusher, {}, metrics)
            session._initialise(begin)
            undo.pop_all()
            return session

    def _initialise(self, begin: Begin) -> None:
        """Push the initial values of the rank's part if requested, and wait until the job trains.

        Parameters
        ----------
        begin
            Called only if this replica pushes the values, and again for each repetition.
        """
        while self._initial_values_are_wanted():  # repeated if a shard failed before they were safe
            placement_epoch = self.parameters.placement.epoch
            values, taken = begin()
            leads = self.ranks.rank == 0
            if taken and leads:
                log.info(f"job {self.job.name} starts from {taken}")
            self.assign(PARAMETERS, values)
            del values
            self.ranks.barrier()
            if leads:
                self.member.call("Report", wire.ReportRequest(initialised_in=placement_epoch))
                self.member.beat()
        # A shard of an earlier placement may still run, without initial values: it would refuse pulls and pushes.
        assert self.member.placement is not None
        self.parameters.locate(int(self.ranks.share(b"%d" % self.member.placement.epoch)))

    def _initial_values_are_wanted(self) -> bool:
        """Wait until the job trains, or requests initial values from this replica; all ranks get the same answer."""
        if self.ranks.rank:
            return bool(self.ranks.share(b""))
        member = cast("MembershipClient", self.member)  # the first rank's

        def trains() -> bool:
            return member.state >= wire.STATE_READY

        if not trains():
            member.wait_for(lambda: trains() or member.initialise, self.job.deadlines.join_s, "initial values")
        return bool(self.ranks.share(b"" if trains() else b"push them"))

    def next_sequence(self, vector: str = PARAMETERS) -> int:
        """Number of the next push into a named vector."""
        return self.sequences.get(vector, 0) + 1

    def assign(self, vector: str, values: np.ndarray | PushSource) -> None:
        """Store float32 values of the rank's part as a named vector on the shards."""
        versions = np.zeros(len(self.parameters.placement.spans), np.int64)
        self.sequences[vector] = self.next_sequence(vector)
        push = Push(self.pusher, self.sequences[vector], vector=vector, assign=True)
        if vector == PARAMETERS and self.job.tables:  # buckets count all pushes of the parameters
            self.parameters.push(values, versions, push, rows={})
        else:
            self.parameters.push(values, versions, push)

    def push(
        self,
        gradient: np.ndarray,
        versions: np.ndarray,
        rate: float,
        samples: int,
        clock: int,
        absent: Collection[str] = (),
    ) -> PushResult:
        """Push the next gradient under the job's rule, if it is finite; returns when all shards have it.

        Parameters
        ----------
        gradient
            Of the rank's part: float32, on the host.
        absent
            Names of the tensors that took no part, where it is 0.

        Raises
        ------
        NonFinite
            Raised before the first byte is sent; names the tensor.
        """
        check_finite(gradient, self.part)
        self.sequences[PARAMETERS] = self.next_sequence()
        ranges = of_tensors(self.part, absent)
        push = Push(self.pusher, self.sequences[PARAMETERS], np.float32(rate), samples, clock=clock, absent=ranges)
        return self.parameters.push(gradient, versions, push)

    def close(self, reason: str, failed: bool = False) -> None:
        """Leave the job and close all channels; `failed`: because of an error."""
        with ExitStack() as stack:
            stack.callback(self.client.close)
            stack.callback(self.parameters.close)
            stack.callback(self.member.leave, reason, failed)


def _model_of(task: JobContext, ranks: RankGroup, brought: OwnModel | None) -> tuple[Model | None, str, Layout, Begin]:
    """A rank's model before it is cut, the digest that must be equal everywhere, the layout, and its initial values."""
    job = task.job
    if brought is not None:
        return None, brought.digest, brought.initial.layout, partial(_begin_whole, job, brought.initial)
    model, source = build_model(job, task.data, task.backend)
    if ranks.size == 1:
        initial = InitialValues.of(job, model)
        return model, source, initial.layout, partial(_begin_whole, job, initial)
    layout = layout_of(model, Grid.of(job.grid))
    return model, source, layout, partial(_begin_part, job, model, layout.part(ranks.rank))


def _form(task: JobContext, brought: OwnModel | None) -> SampleForm | None:
    """Form of the samples, as a program or the data here has it."""
    if brought is not None:
        return brought.samples
    return task.data.form if task.data is not None else None


def _train_samples(task: JobContext) -> int:
    """Number of training samples, as the data here or a script's job says; 0: none."""
    if isinstance(task.job.data, ScriptData):
        return task.job.data.train
    return len(task.data.train) if task.data is not None and task.data.train is not None else 0


def _begin_whole(job: Job, initial: InitialValues) -> tuple[np.ndarray | PushSource, str]:
    """Initial values of a model on one rank, and the run that they are from, or ""; drawn where there is none."""
    if job.start_from is None:
        return initial.source(), ""
    values = aligned(initial.layout.size, np.float32)
    return values, load_initial_from_run(job, initial.layout, values)


def _begin_part(job: Job, model: Model, part: RankPart) -> tuple[np.ndarray, str]:
    """Initial values of a rank's part of a model, and their source.

    Memory: the part and one tensor, or row of blocks, at a time; where the job starts from a run, the complete model.
    """
    values = aligned(part.size, np.float32)
    if job.start_from is None:
        assert hasattr(model, "drawn"), f"{type(model).__name__} was cut"
        return part.collect(model.drawn(np.random.default_rng(job.seed)), values), ""
    whole = layout_of(model, Grid(1, 1))
    flat = aligned(whole.size, np.float32)
    taken = load_initial_from_run(job, whole, flat)
    return part.flatten(whole.views(flat), values), taken


def _placed(membership: MembershipClient, ranks: RankGroup, join_s: float) -> MembershipClient:
    """Wait until all shards have joined, and send the member's identity to the other ranks."""
    membership.wait_for(lambda: membership.placement is not None, join_s, "all shards to join")
    identity = wire.JoinReply(id=membership.id, incarnation=membership.incarnation, run_id=membership.run_id)
    ranks.share(identity.SerializeToString())
    return membership


def _parameters(
    job: Job,
    member: MemberView,
    pusher: Pusher,
    own: Range | None,
    shares_memory: bool,
    direct: bool,
    starts: Sequence[int],
) -> ShardedParameterClient:
    """Client of the shards of the member's placement; `own` is the rank's range of the vector, None for all of it."""
    assert member.placement is not None
    rule, tables = job.strategy.at_shards, number_tables(job.tables, job.seed, member.placement.dense)
    return ShardedParameterClient(
        job.name,
        member.placement,
        (rule.name, rule.model_dump(exclude={"name", "rate"})),
        pusher,
        job.deadlines.progress_s,
        refresh=member.placed,
        part=own,
        shares_memory=shares_memory,
        codecs=Codecs.of(job.wire, starts, job.pulls_differences, tables),
        direct=direct,
    )


def _wait_for_placement(client: CoordinatorClient, role: wire.Role.ValueType, ranks: RankGroup) -> MemberView:
    """View of the member that rank 0 registered, once all shards have joined."""
    identity = wire.JoinReply.FromString(ranks.share(b""))
    member = MemberView(client, role, identity.id, identity.incarnation, identity.run_id)
    member.placed()
    return member
