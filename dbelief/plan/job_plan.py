"""The complete plan of a job, as shown by `dbelief plan`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.arrays.backend import device_bytes, select_backend
from dbelief.core.layout import Layout, assign_segments, nominal_length
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.touched_count import TOUCHED_BYTES, touched_count
from dbelief.errors import JobError
from dbelief.job import Job, Sandblaster
from dbelief.partition import Grid
from dbelief.partition.traffic import Passage

from .bag_keys import distinct_keys
from .communication_cost import Communication, communication
from .layers import PlannedLayer, reading_sparse
from .memory import RankMemory, exchange_bytes, machine_bytes, process_bytes, rank_memory, shard_memory
from .model_shapes import Sketch, sketch
from .rows import PlannedRows, plan_rows
from .sample import Sample, sample_of
from .shard_traffic import NO_ROWS, fetched_bytes, pushed_bytes
from .speeds import GIGABIT, Speeds
from .volumes import Volumes

GIB = 1 << 30


@dataclass(frozen=True)
class PlannedRank:
    """One rank of a replica.

    Attributes
    ----------
    parameters, frozen
        Numbers of trained and of frozen parameters that it holds.
    shards
        (shard, segments) for each that it fetches from and pushes to.
    sent_bytes, messages
        To other ranks, per mini-batch.
    fetched_bytes, pushed_bytes
        From shards in a fetch, if all has changed, and to them in a push, as encoded by the job's codecs.
    """

    rank: int
    parameters: int
    frozen: int
    memory: RankMemory
    shards: Sequence[tuple[int, int]]
    sent_bytes: int
    messages: int
    fetched_bytes: int
    pushed_bytes: int


@dataclass(frozen=True)
class PlannedShard:
    """One shard: number of parameters, and bytes by purpose."""

    shard: int
    parameters: int
    segments: int
    memory: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class Fit:
    """Memory check: bytes needed, and bytes available."""

    what: str
    needs: int
    has: int

    @property
    def fits(self) -> bool:
        """Whether the needed bytes are available."""
        return self.needs <= self.has


@dataclass(frozen=True)
class Plan:
    """Resource estimate of a job.

    Attributes
    ----------
    samples
        Of a mini-batch, or of a batch method's portion.
    step
        Exchanges inside one replica per mini-batch, in order.
    on_device
        Whether the model is computed on a GPU.
    data_bytes
        Bytes of the job's data in each worker; 0 where the data was not loaded.
    process_bytes
        By role, of a process without parameters and data.
    rows
        Tables of the job; None: it has none.
    """

    job: str
    grid: Grid
    replicas: int
    samples: int
    layers: Sequence[PlannedLayer]
    ranks: Sequence[PlannedRank]
    shards: Sequence[PlannedShard]
    step: Sequence[Passage]
    communication: Communication
    on_device: bool
    data_bytes: int
    process_bytes: Mapping[str, int]
    fits: Sequence[Fit]
    notes: Sequence[str]
    rows: PlannedRows | None = None

    def parameters(self, state: str = "trained") -> int:
        """Number of parameters of all layers in this state."""
        return sum(layer.parameters for layer in self.layers if layer.state == state)

    def described(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "job": self.job,
            "grid": [self.grid.rows, self.grid.columns],
            "replicas": self.replicas,
            "samples": self.samples,
            "computed_on": "cuda" if self.on_device else "cpu",
            "parameters": {state: self.parameters(state) for state in ("trained", "frozen", "later")},
            "layers": [{**asdict(layer), "parameters": layer.parameters} for layer in self.layers],
            "ranks": [_rank(rank) for rank in self.ranks],
            "exchanges": [
                {"what": p.what, "way": p.way, "messages": int(p.messages.sum()), "bytes": int(p.sent_bytes.sum())}
                for p in self.step
            ],
            "shards": [{**asdict(shard), "bytes": shard.bytes} for shard in self.shards],
            "communication": self.communication.described(),
            "data_bytes": self.data_bytes,
            "process_bytes": dict(self.process_bytes),
            "fits": [{**asdict(fit), "fits": fit.fits} for fit in self.fits],
            "notes": list(self.notes),
            "rows": None if self.rows is None else self.rows.described(),
        }


def _rank(rank: PlannedRank) -> dict[str, Any]:
    memory = rank.memory
    more = {"host_bytes": memory.host_bytes, "device_bytes": memory.device_bytes}
    return {**asdict(rank), "memory": {**asdict(memory), **more}}


def make_plan(
    job: Job,
    memory_gib: float | None = None,
    speeds: Speeds = GIGABIT,
    rows: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
) -> Plan:
    """Plan a job.

    Parameters
    ----------
    memory_gib
        GiB of memory that one rank has where the model is computed, and a shard that holds rows; None: not checked, but
        for such a shard with the memory of this machine.
    speeds
        Of the network, and of each replica.
    rows, keys
        See `plan_rows`; of tables that are not named as in the training data.

    Raises
    ------
    UserError
        The model does not fit its inputs, cannot be partitioned, or its input shape is unknown; see `plan_rows`.
    """
    sample, grid = sample_of(job), Grid.of(job.grid)
    samples = job.samples_at_once
    if sample.data is not None and sample.data.train is not None:
        samples = min(samples, len(sample.data.train))
    model = sketch(job, sample, grid, samples)
    step = [*model.step, *_clipping(job, grid)]
    on_device, devices = _device(job)
    placement = placed(model.layout, job.shards)
    sparse = model.reads_sparse and not on_device
    batch = sample.batch_bytes(samples, sparse)
    layers = reading_sparse(model.layers, sample.numbers) if sparse and sample.numbers else model.layers
    touched = _touched(job, model, sample, samples) if sparse and grid.size == 1 else None
    ranks = _ranks(job, model, placement, step, batch, touched, on_device)
    held = _rows(job, model, sample, samples, rows or {}, keys or {}, memory_gib)
    shards = _shards(job, placement, held)
    volumes = Volumes.of(layers, job.replicas, samples)
    fits = _fits(job, ranks, shards, sample.data_bytes, devices, memory_gib)
    if job.replicas > 1 and sample.data_bytes:
        fits.append(copies(job.replicas, volumes.weight_bytes, sample.data_bytes, machine_bytes()))
    notes = [*model.notes, *(idle_shards(placement) if not job.tables else [])]
    return Plan(
        job.name,
        grid,
        job.replicas,
        samples,
        layers,
        ranks,
        shards,
        step,
        communication(volumes, speeds, job, touched, NO_ROWS if held is None else held.traffic),
        on_device,
        sample.data_bytes,
        process_bytes(job),
        fits,
        notes,
        held,
    )


def _ranks(
    job: Job,
    model: Sketch,
    placement: Placement,
    step: Sequence[Passage],
    batch: int,
    touched: int | None,
    on_device: bool,
) -> list[PlannedRank]:
    """The ranks of a replica; `batch`: bytes of a mini-batch's inputs, `touched`: see `rank_memory`."""
    size = Grid.of(job.grid).size
    ranks = []
    for rank, shards in enumerate(_talks(model.layout, placement, size)):
        part = model.layout.part(rank)
        memory = rank_memory(
            job,
            whole=model.layout.size,
            part=part.size,
            drawn=model.drawn,
            given=sum(model.frozen),
            frozen=model.frozen[rank],
            activations=model.activations[rank],
            exchanged=exchange_bytes(step, rank),
            batch=batch,
            on_device=on_device,
            touched=touched,
        )
        sent = sum(int(passage.sent_bytes[rank].sum()) for passage in step)
        messages = sum(int(passage.messages[rank].sum()) for passage in step)
        moved = fetched_bytes(job.wire, part.size), pushed_bytes(job.wire, part.size)
        if touched is not None:
            moved = TOUCHED_BYTES * touched, TOUCHED_BYTES * touched
        ranks.append(PlannedRank(rank, part.size, model.frozen[rank], memory, shards, sent, messages, *moved))
    return ranks


def _rows(
    job: Job,
    model: Sketch,
    sample: Sample,
    samples: int,
    rows: Mapping[str, int],
    keys: Mapping[str, int],
    memory_gib: float | None,
) -> PlannedRows | None:
    """The tables of a job, with counts of its training data where none are given; None: there are no tables."""
    if not job.tables:
        return None
    assert sample.data is not None
    assert sample.data.train is not None
    found = distinct_keys(sample.data.train, model.reads, samples)
    rows = {**{name: one.all for name, one in found.items()}, **rows}
    keys = {**{name: one.batch for name, one in found.items()}, **keys}
    return plan_rows(job, model.layout.size, rows, keys, memory_gib)


def _touched(job: Job, model: Sketch, sample: Sample, samples: int) -> int | None:
    """Numbers that a bundle of portions of so many samples touches; None where whole vectors travel."""
    box = next((box for box in model.layout.boxes if box.name == model.column_tensor), None)
    if not isinstance(job.strategy, Sandblaster) or box is None or sample.mean_numbers is None:
        return None
    numbers = sample.mean_numbers * job.strategy.bundle * samples
    touched = touched_count(model.layout.size, box.size, box.shape[0], numbers)
    return None if touched is None else math.ceil(touched)


def copies(parts: int, weight_bytes: int, data_bytes: int, memory: int) -> Fit:
    """Whether `parts` parts of one machine can each have weights and data of their own (You et al. 2017, section 6.2).

    This is a lower bound; a replica also has gradients and activations.
    """
    most = memory // (weight_bytes + data_bytes)
    return Fit(f"weights and data, {parts} copies (at most {most})", parts * (weight_bytes + data_bytes), memory)


def placed(layout: Layout, shards: int) -> Placement:
    """The segments of a layout, each assigned to a shard."""
    spans = layout.segments(nominal_length(layout.size, shards))
    runs = enumerate(assign_segments(spans, shards))
    return Placement(0, tuple(spans), tuple(ShardPlacement(shard, "", 0, (run,)) for shard, run in runs))


def idle_shards(placement: Placement) -> list[str]:
    """A one-line list if some shards would hold nothing of the model; else an empty list."""
    idle = [place.shard for place in placement.places if not place.count]
    if not idle:
        return []
    used = len(placement.places) - len(idle)
    which = f"shard {idle[0]}" if len(idle) == 1 else f"shards {', '.join(map(str, idle))}"
    return [
        f"{which} would hold no parameters: {sum(span.length for span in placement.spans):,} parameters are "
        f"{len(placement.spans)} segment{'s' * (len(placement.spans) != 1)}; shards: {used} is enough"
    ]


def _talks(layout: Layout, placement: Placement, ranks: int) -> list[list[tuple[int, int]]]:
    """By rank, (shard, segments) of its part; no segment belongs to two ranks."""
    starts = [start for start, _ in layout.rank_ranges()]
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for at in placement.places:
        counts = Counter(bisect_right(starts, span.start) - 1 for span in placement.run(at))
        for rank, segments in sorted(counts.items()):
            found[rank].append((at.shard, segments))
    return found


def _clipping(job: Job, grid: Grid) -> list[Passage]:
    """The exchange for clipping: the squared norm of a gradient, one number, is summed over all ranks."""
    if grid.size == 1 or isinstance(job.strategy, Sandblaster) or job.strategy.clip_norm is None:
        return []
    return Passage.sums("square of the gradient's length", 1, grid.size)


def _shards(job: Job, placement: Placement, rows: PlannedRows | None) -> list[PlannedShard]:
    found = []
    for at in placement.places:
        numbers = sum(span.length for span in placement.run(at))
        memory = shard_memory(job, numbers)
        if rows is not None:
            memory["rows of tables"] = sum(table.on_shards(job.shards, at.shard) for table in rows.tables)
        found.append(PlannedShard(at.shard, numbers, at.count, memory))
    return found


def _device(job: Job) -> tuple[bool, list[int]]:
    """Whether the job's model is computed on a GPU, and the memory in bytes of each GPU of this machine."""
    try:
        backend = select_backend(job.computes_on)
    except JobError:  # this machine has none; the plan is for a machine with a GPU
        return True, []
    return backend.name != "numpy", device_bytes(backend)


def _fits(
    job: Job,
    ranks: Sequence[PlannedRank],
    shards: Sequence[PlannedShard],
    data_bytes: int,
    devices: Sequence[int],
    memory_gib: float | None,
) -> list[Fit]:
    memories, found = [rank.memory for rank in ranks], []
    if memory_gib is not None:
        room = int(memory_gib * GIB)
        found.append(Fit("the largest rank", max(memory.computed_bytes for memory in memories), room))
        if not memories[0].device:
            found.append(Fit("each rank at its start", max(memory.start for memory in memories), room))
    processes = {"coordinator": 1, "shard": job.replication * len(shards), "rank": job.replicas * len(ranks)}
    beside = job.replicas * data_bytes + job.replication * sum(shard.bytes for shard in shards)
    beside += sum(count * process_bytes(job)[name] for name, count in processes.items())
    training, starting = (sum(each) for each in zip(*((m.host_bytes, m.start) for m in memories), strict=True))
    machine = machine_bytes()
    found.append(Fit("coordinator, replicas and shards on this machine", job.replicas * training + beside, machine))
    found.append(Fit("the same at their start", job.replicas * starting + beside, machine))
    if devices:  # a replica's ranks use them in rotation
        shares = [memories[number :: len(devices)] for number in range(len(devices))]
        needs = max(job.replicas * sum(memory.device_bytes for memory in share) for share in shares)
        found.append(Fit("the fullest of this machine's GPUs", needs, min(devices)))
    return found
