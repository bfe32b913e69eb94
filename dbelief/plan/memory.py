"""Memory that a job needs: of each rank of a replica during start and training, and of each shard.

Counted is memory that is kept for the job's duration and grows with the model or the mini-batch, and `PROCESS` for each
process. Not counted: internal buffers of layers (a convolution's windows, kernels' copies of tiles), and messages in
transit to and from shards, of 1 MiB each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dbelief.core.lease import FetchPushSchedule
from dbelief.core.push import EXCHANGE_WINDOW
from dbelief.job import CsvData, Diloco, Elastic, Job, LibsvmData, Sandblaster, SyncSgd
from dbelief.optim import make_rule
from dbelief.partition.traffic import Passage
from dbelief.rpc.wire.bulk import FULL_BYTES

from .shard_traffic import pushed_bytes

FLOAT32 = 4
CGROUP = Path("/sys/fs/cgroup/memory.max")

MIB = 1 << 20
PROCESS = {"coordinator": 105 * MIB, "shard": 65 * MIB, "rank": 95 * MIB}
"""Bytes of a process before it holds any of the job's data: the interpreter and its modules (docs/results/scale.md). A
coordinator needs no more than that: it holds neither parameters nor data."""
COMPILED = 120 * MIB
"""What a process takes besides once it has read text by compiled loops: the compiler's modules."""
DRAWN = 2
"""Pieces of initial values that a rank briefly holds at the start: the one that its values are taken from, and the next
one, beside what it keeps of all."""
READ = 2
"""Copies of the complete model that a rank briefly holds where the job starts from a run: as read, and as a vector."""
SET = "copies while a snapshot set is written"
"""Copy of segments that are pushed to before they are written to a snapshot set: at worst all. Groups pause pushes."""
HALF = 2
"""Bytes of a number in bf16. A rank keeps what it has fetched by differences; a shard that too, and the differences,
which are shorter than the numbers."""
TOUCHED = 56
"""Bytes of a worker for each number that a bundle of sparse rows touches: 20 of the bundle that is computed (position,
trial, gradient, sum), 12 of the next one (position, trial), 24 of the one that is sent (position, sum, both packed)."""
METHOD = 5
"""Vectors that a batch method has on the shards besides its pairs: parameters, trial, gradient, the previous gradient,
direction. One more with an L1 penalty, the pseudo-gradient; and one more pair than the history holds, for the next."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank, in bytes.

    Attributes
    ----------
    host, device
        By purpose, during training; `device` is empty where the model is computed on the host.
    start
        On the host, temporarily, before training.
    """

    host: Mapping[str, int]
    device: Mapping[str, int]
    start: int

    @property
    def host_bytes(self) -> int:
        """Bytes on the host, during training."""
        return sum(self.host.values())

    @property
    def device_bytes(self) -> int:
        """Bytes on the device."""
        return sum(self.device.values())

    @property
    def kinds(self) -> Mapping[str, int]:
        """Bytes by purpose during training, where the model is computed."""
        return self.device or self.host

    @property
    def computed_bytes(self) -> int:
        """Bytes where the model is computed, during training."""
        return sum(self.kinds.values())


def rank_memory(
    job: Job,
    *,
    whole: int,
    part: int,
    drawn: int,
    given: int,
    frozen: int,
    activations: int,
    exchanged: int,
    batch: int,
    on_device: bool,
    touched: int | None = None,
) -> RankMemory:
    """Memory of one rank, from counts of float32 numbers, if nothing else is said.

    Parameters
    ----------
    whole, part
        Trained parameters of the job, and those that the rank holds.
    drawn
        Initial values that are drawn at a time; 0: they are drawn while they are sent, and none are held.
    given, frozen
        Not trained: numbers that every rank reads, and those that the rank holds.
    activations
        That layers keep in a step.
    exchanged
        Bytes of the exchanges between ranks.
    batch
        Bytes of a mini-batch's inputs.
    touched
        Numbers that a bundle touches, where a batch method sends no others; None: whole vectors are.
    """
    batches = 2 if isinstance(job.strategy, Sandblaster) else 1
    if touched is not None and isinstance(job.strategy, Sandblaster):
        batches += 2 * job.strategy.bundle  # rows of the bundle that is computed, and of the next one
    copies = _copies(job)
    vectors = {name: count * part * FLOAT32 for name, count in copies.items()}
    computed = {
        **(vectors if touched is None else {"numbers that bundles touch": TOUCHED * touched}),
        "frozen parameters": frozen * FLOAT32,
        "activations": activations * FLOAT32,
        "exchange": exchanged,
        "mini-batch": batches * batch,
        "evaluation's copy": part * FLOAT32,
    }
    # Pushes are encoded on the host, for host and device gradients, and kept until they are acknowledged.
    kept = part * FLOAT32 + pushed_bytes(job.wire, part) if job.wire.push.later else 0
    left_out = {f"left out by {job.wire.push.name}, and what is sent": kept} if kept else {}
    left_out |= {"what was fetched, in bf16": HALF * part} if job.pulls_differences else {}
    if job.start_from is not None:
        initial = READ * whole + (part if part < whole else 0)
    else:
        initial = DRAWN * drawn + part if drawn else 0
    start = (initial + given) * FLOAT32
    if not on_device:
        return RankMemory(computed | left_out, {}, start)
    both = (next(iter(copies)), "frozen parameters", "mini-batch", "evaluation's copy")
    return RankMemory({name: computed[name] for name in both} | left_out, computed, start)


def _copies(job: Job) -> dict[str, int]:
    """Vectors of its part's length that a rank trains with; with a device, the host has the first of them too."""
    strategy = job.strategy
    if isinstance(strategy, SyncSgd | Diloco):
        states = make_rule(strategy.rule.name, strategy.rule.model_dump(exclude={"name", "rate"})).state
        held = {f"state of {strategy.rule.name}": len(states)} if states else {}
        also = "own weights" if isinstance(strategy, Diloco) else "exchange with the group"
        travels = {"push that travels": 2} if isinstance(strategy, Diloco) and strategy.delay else {}
        return {"parameters": 1, "gradient": 1, also: 1, **travels, **held}
    if isinstance(strategy, Elastic):
        if strategy.grouped:
            return {"centre": 1, "own weights": 1, "gradient": 1, "exchange with the group": 2}
        moving = {"velocity": 1} if strategy.momentum is not None else {}
        ahead = {"where the velocity leads": 1} if strategy.nesterov else {}
        return {"centre": 1, "own weights": 1, "gradient": 1, **moving, **ahead}
    if isinstance(strategy, Sandblaster):
        return {"fetched": 1, "outgoing, 2 gradients": 2, "gradient": 1}
    schedule = FetchPushSchedule(strategy.batch, strategy.n_fetch, strategy.n_push, strategy.literal)
    fetched = {"fetched, 2 copies": 2} if strategy.overlap else {"fetched": 1}
    waits = not strategy.overlap and schedule.fetches_after_every_push
    outgoing = {"outgoing gradient": 1} if waits else {"outgoing, 2 gradients": 2}
    return {**fetched, **outgoing, **({"gradient": 1} if schedule.needs_own_gradient else {})}


def process_bytes(job: Job) -> Mapping[str, int]:
    """Bytes of a process of each role before it holds any of the job's data."""
    reads_text = isinstance(job.data, CsvData | LibsvmData)
    return {**PROCESS, "rank": PROCESS["rank"] + COMPILED * reads_text}


def exchange_bytes(step: Sequence[Passage], rank: int) -> int:
    """Bytes of one rank's messages in a step, packed for sending and as received, and of the arrays they are for."""
    found = 0
    for passage in step:
        packed = passage.numbers[rank].sum() + passage.numbers[:, rank].sum()
        found += (int(packed) + passage.held[rank]) * passage.itemsize
    return found


def shard_memory(job: Job, numbers: int) -> dict[str, int]:
    """Memory of a shard that holds `numbers` parameters, by purpose; the peak, while a snapshot set is written."""
    strategy, vector = job.strategy, numbers * FLOAT32
    if isinstance(strategy, Sandblaster):
        return {
            "parameters and the method's vectors": (METHOD + bool(strategy.l1) + 2 * (strategy.history + 1)) * vector,
            "sum of gradients, float64": numbers * np.dtype(np.float64).itemsize,
            SET: numbers * np.dtype(np.float64).itemsize,  # no program runs then, but bundles may be accumulated
        }
    rule = strategy.at_shards
    states = make_rule(rule.name, rule.model_dump(exclude={"name", "rate"})).state
    found = {"parameters": vector, f"state of {rule.name}": len(states) * vector}
    if job.keeps_best:
        found["best parameters"] = 2 * vector  # the previous best is kept until a better one is complete
    if isinstance(strategy, Elastic) and not (strategy.grouped or strategy.turns):
        found["answers kept for repetition"] = job.replicas * min(vector, EXCHANGE_WINDOW * FULL_BYTES)
    if strategy.staleness == 0:
        late = isinstance(strategy, Diloco) and strategy.quorum is not None  # one may wait beside that of an open round
        found["gradients of a round"] = (1 if strategy.turns else job.replicas * (1 + late)) * vector
    if job.pulls_differences:
        found["what was fetched, in bf16, and differences"] = 2 * HALF * numbers
    if not (isinstance(strategy, SyncSgd | Elastic) and strategy.grouped):
        found[SET] = (1 + len(states)) * vector
    return found


def machine_bytes() -> int:
    """Memory of this machine, or of this process's container where that is less, in bytes."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical
