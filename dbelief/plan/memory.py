"""Bytes that a job needs: of each rank of a replica while it starts and while it trains, and of each shard.

What is counted is what is kept as long as the job runs and grows with the model or the mini-batch, and `PROCESS` for
each process. Not counted: what layers keep for themselves (a convolution's windows, kernels' copies of tiles), and
messages under way to and from shards, of 1 MiB each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dbelief.core.push import EXCHANGE_WINDOW
from dbelief.job import Elastic, Job, Sandblaster, SyncSgd
from dbelief.optim import make_rule
from dbelief.partition.traffic import Passage
from dbelief.rpc.wire.bulk import FULL_BYTES

from .shard_traffic import pushed_bytes

FLOAT32 = 4
CGROUP = Path("/sys/fs/cgroup/memory.max")

MIB = 1 << 20
PROCESS = {"coordinator": 105 * MIB, "shard": 65 * MIB, "rank": 95 * MIB}
"""Of a process before it holds anything of the job: the interpreter and its modules (docs/results.md). A coordinator
has no more than that: neither parameters nor data."""
FETCHED, OUTGOING = 2, 2
"""Copies that Downpour has of a rank's part: of parameters, one computed on while the other is fetched; of gradients,
one computed while the other is on its way. And one to add up several mini-batches from."""
DRAWN = 2
"""Copies that a rank has for a moment at the start. Of the whole model where it has all of it: as it was drawn, and as
one vector. Else of what is drawn at a time: the piece that its own part is taken of, and the next one."""
SET = "copies while a snapshot set is written"
"""Of what is pushed to before it is in the set: all that pushes change, at worst. Groups do not push meanwhile."""
METHOD = 5
"""Vectors that a batch method has on the shards beside its pairs: parameters, trial, gradient, the one before,
direction. Of pairs there is one more than the history holds, for the next one."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank.

    Attributes
    ----------
    host, device
        By what they are for, while it trains; `device` is empty where the model is computed on the host.
    start
        On the host, for a moment, before it trains.
    """

    host: Mapping[str, int]
    device: Mapping[str, int]
    start: int

    @property
    def host_bytes(self) -> int:
        """On the host, while it trains."""
        return sum(self.host.values())

    @property
    def device_bytes(self) -> int:
        """On the device."""
        return sum(self.device.values())

    @property
    def kinds(self) -> Mapping[str, int]:
        """While it trains, where the model is computed."""
        return self.device or self.host

    @property
    def computed_bytes(self) -> int:
        """Where the model is computed, while it trains."""
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
) -> RankMemory:
    """Memory of one rank, from numbers of float32.

    Parameters
    ----------
    whole, part
        Parameters that the job trains, and how many of them the rank holds.
    drawn
        Of them, initial values that are drawn at a time where no rank holds all.
    given, frozen
        Not trained: read by every rank, and how many of them the rank holds.
    activations
        That layers keep in a step.
    exchanged
        Bytes, of what goes between ranks.
    batch
        Numbers of a mini-batch's inputs.
    """
    batches = 2 if isinstance(job.strategy, Sandblaster) else 1
    copies = _copies(job)
    computed = {
        **{name: count * part * FLOAT32 for name, count in copies.items()},
        "frozen parameters": frozen * FLOAT32,
        "activations": activations * FLOAT32,
        "exchange": exchanged,
        "mini-batch": batches * batch * FLOAT32,
        "evaluation's copy": part * FLOAT32,
    }
    # Pushes are encoded on the host, wherever the gradient was computed, and kept until they are acknowledged.
    kept = part * FLOAT32 + pushed_bytes(job.wire, part) if job.wire.push.later else 0
    left_out = {f"left out by {job.wire.push.name}, and what is sent": kept} if kept else {}
    start = ((DRAWN * drawn + part if part < whole else DRAWN * whole) + given) * FLOAT32
    if not on_device:
        return RankMemory(computed | left_out, {}, start)
    both = (next(iter(copies)), "frozen parameters", "mini-batch", "evaluation's copy")
    return RankMemory({name: computed[name] for name in both} | left_out, computed, start)


def _copies(job: Job) -> dict[str, int]:
    """Vectors as long as its part that a rank trains with; on a device, the host has the first of them too."""
    strategy = job.strategy
    if isinstance(strategy, SyncSgd):
        states = make_rule(strategy.rule.name, strategy.rule.model_dump(exclude={"name", "rate"})).state
        held = {f"state of {strategy.rule.name}": len(states)} if states else {}
        return {"parameters": 1, "gradient": 1, "exchange with the group": 1, **held}
    if isinstance(strategy, Elastic):
        if strategy.grouped:
            return {"centre": 1, "own weights": 1, "gradient": 1, "exchange with the group": 2}
        moving = {"velocity": 1} if strategy.momentum is not None else {}
        ahead = {"where the velocity leads": 1} if strategy.nesterov else {}
        return {"centre": 1, "own weights": 1, "gradient": 1, **moving, **ahead}
    copies = 1 if isinstance(strategy, Sandblaster) else FETCHED
    fetched = f"fetched, {copies} copies" if copies > 1 else "fetched"
    return {fetched: copies, f"outgoing, {OUTGOING} gradients": OUTGOING, "gradient": 1}


def exchange_bytes(step: Sequence[Passage], rank: int) -> int:
    """Of one rank's messages in a step, packed as they leave and as they come, and of the arrays they are for."""
    found = 0
    for passage in step:
        packed = passage.numbers[rank].sum() + passage.numbers[:, rank].sum()
        found += (int(packed) + passage.held[rank]) * passage.itemsize
    return found


def shard_memory(job: Job, numbers: int) -> dict[str, int]:
    """Memory of a shard that holds so many parameters, by what it is for; at its most, a snapshot set being written."""
    strategy, vector = job.strategy, numbers * FLOAT32
    if isinstance(strategy, Sandblaster):
        return {
            "parameters and the method's vectors": (METHOD + 2 * (strategy.history + 1)) * vector,
            "sum of gradients, float64": numbers * np.dtype(np.float64).itemsize,
            SET: numbers * np.dtype(np.float64).itemsize,  # no program runs then, but bundles may come
        }
    rule = strategy.at_shards
    states = make_rule(rule.name, rule.model_dump(exclude={"name", "rate"})).state
    found = {"parameters": vector, f"state of {rule.name}": len(states) * vector}
    if job.keeps_best:
        found["best parameters"] = 2 * vector  # the best so far stays until a better one is whole
    if isinstance(strategy, Elastic) and not (strategy.grouped or strategy.turns):
        found["answers kept for repetition"] = job.replicas * min(vector, EXCHANGE_WINDOW * FULL_BYTES)
    if strategy.staleness == 0:
        found["gradients of a round"] = (1 if strategy.turns else job.replicas) * vector
    if not (isinstance(strategy, SyncSgd | Elastic) and strategy.grouped):
        found[SET] = (1 + len(states)) * vector
    return found


def machine_bytes() -> int:
    """Memory of this machine, or of the container that this process is in where that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical
