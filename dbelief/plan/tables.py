"""Output of `dbelief plan` and `dbelief zoo`.

Of a job: its layers, ranks, exchanges, sums and shards, and whether they fit in memory. Of a network: what a step
transfers and computes, and how long the sums of a gradient take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import plural, short_time, si, size
from dbelief.monitor.status_table import facts_of
from dbelief.plan import Communication, NetworkPlan, Plan, SizedPlan, Speeds
from dbelief.plan.communication_cost import megabytes
from dbelief.plan.exchange import ENOUGH, Exchange
from dbelief.plan.job_plan import PlannedRank
from dbelief.plan.layers import PlannedLayer
from dbelief.plan.rows import PlannedRows

ROWS = 8
"""Largest number of ranks, and of shards, that are listed singly; beyond it only the smallest and the largest."""

MANY = 4
"""Largest number of a layer's tensors that are listed singly."""


def planned(plan: Plan | NetworkPlan | SizedPlan) -> RenderableType:
    """The complete report of a plan."""
    if isinstance(plan, SizedPlan):
        return _sized(plan)
    return _network(plan) if isinstance(plan, NetworkPlan) else _job(plan)


def zoo_listing(plans: Iterable[NetworkPlan]) -> RenderableType:
    """All networks: the columns of FireCaffe's Table 1, and a description."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("network", no_wrap=True)
    for title in ("parameters", "|W|", "|D|", "|D| / |W|", "a step"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("in a job")
    lines: list[RenderableType] = []
    for plan in plans:
        of, name = plan.volumes, plan.network.name
        volumes = (f"{of.parameters:,}", megabytes(of.weight_bytes), megabytes(of.data_bytes))
        trained = "counted only" if plan.network.chain is None else f"model: {{zoo: {name}}}"
        table.add_row(name, *volumes, f"{of.data_bytes / of.weight_bytes:.3g}", si(of.step_flop, "flop"), trained)
        lines.append(Text(f"{name}: {plan.network.about}"))
    samples = Text(f"|D| and a step's operations of {of.batch:,} samples; |W| with biases", "dim")
    return Group(table, Text(), *lines, Text(), samples)


def _job(plan: Plan) -> RenderableType:
    blocks: list[RenderableType] = [_facts(plan), _layers(plan.layers), _ranks(plan)]
    if plan.step:
        blocks.append(_exchanges(plan))
    blocks.append(_shards(plan))
    if plan.rows is not None:
        blocks.append(_tables(plan.rows))
    if plan.replicas > 1:
        blocks.append(_sums_table(plan.communication))
    return _apart(blocks)


def _sized(plan: SizedPlan) -> RenderableType:
    rows = [
        ("parameters", f"{plan.parameters:,} trained"),
        ("replicas", f"{plan.exchange.replicas}, mini-batches of {plan.samples}"),
        _links(plan.speeds),
        *_exchange_rows(plan.exchange),
    ]
    if plan.rows is None:
        return facts_of(plan.job, rows)
    return _apart([facts_of(plan.job, [*rows, *_memory_rows(plan.rows)]), _tables(plan.rows)])


def _memory_rows(rows: PlannedRows) -> list[tuple[str, str]]:
    """Rows of names and sentences: the memory of shards that hold tables."""
    if rows.shard_bytes is None:
        return [("memory", "of the shards is not known: give the rows of each table by --rows, such as user=10M")]
    fits = "fits" if rows.shard_bytes <= rows.machine_bytes else "DOES NOT FIT"
    needs, has = size(rows.shard_bytes), size(rows.machine_bytes)
    enough = "more buckets are needed" if rows.shards_enough is None else f"shards: {rows.shards_enough:,} is enough"
    return [(fits, f"the fullest shard: {needs} of {has}; on machines of their own {enough}")]


def _tables(rows: PlannedRows) -> RenderableType:
    """Tables, with memory for the copies while a snapshot set is written."""
    made = _table(
        "table", right=("numbers and state", "a row", "rows", "memory", "keys a mini-batch", "pushed", "pulled")
    )
    for table in rows.tables:
        count = "each million" if table.rows is None else f"{table.rows:,}"
        of = table.traffic
        moved = ["give --keys", "", ""]
        if table.keys:
            moved = [f"{table.keys:,}", si(of.pushed, "B"), si(of.asked + of.fetched, "B")]
        numbers, row = f"{table.width} + {table.state}", f"{table.row_bytes:.3g} B"
        made.add_row(Text(table.name), numbers, row, count, size(table.bytes), *moved)
    return made


def _network(plan: NetworkPlan) -> RenderableType:
    rows = [
        ("is", plan.network.about),
        ("parameters", f"{plan.volumes.parameters:,}"),
        *_volume_rows(plan.communication),
    ]
    blocks = [facts_of(plan.network.name, rows, "network"), _layers(plan.layers)]
    if plan.volumes.replicas > 1:
        blocks.append(_sums_table(plan.communication))
    return _apart(blocks)


def _apart(blocks: Sequence[RenderableType]) -> RenderableType:
    return Group(*[line for block in blocks for line in (block, Text())][:-1])


def _facts(plan: Plan) -> RenderableType:
    grid = plan.grid
    counts = f"{plan.parameters():,} trained"
    for state, word in (("frozen", "used as they are"), ("later", "of no part in this job yet")):
        if plan.parameters(state):
            counts += f", {plan.parameters(state):,} {word}"
    rows = [
        ("parameters", counts),
        ("replicas", f"{plan.replicas}, each on {grid.rows} x {grid.columns} ranks, mini-batches of {plan.samples}"),
        ("computed on", "GPU" if plan.on_device else "CPU"),
        *[("data", f"{size(plan.data_bytes)} in each worker")] * bool(plan.data_bytes),
        ("coordinator", f"{size(plan.process_bytes['coordinator'])}, whatever the data and the model"),
        *[
            ("fits" if fit.fits else "DOES NOT FIT", f"{fit.what}: {size(fit.needs)} of {size(fit.has)}")
            for fit in plan.fits
        ],
        *(_memory_rows(plan.rows) if plan.rows is not None else []),
        *_volume_rows(plan.communication),
        *[("note", note) for note in plan.notes],
    ]
    return facts_of(plan.job, rows)


def _layers(layers: Iterable[PlannedLayer]) -> RenderableType:
    table = _table("layer", "outputs", "tensors", right=("parameters",))
    for layer in layers:
        tensors = ", ".join(f"{name.rpartition('.')[2]} {_shape(shape)}" for name, shape in layer.tensors.items())
        if len(layer.tensors) > MANY:
            tensors = f"{len(layer.tensors)} of layers side by side, or of a head"
        name = layer.name + (f" ({layer.state})" if layer.state != "trained" else "")
        table.add_row(Text(name), _shape(layer.outputs), Text(tensors or "–"), f"{layer.parameters:,}")
    return table


def _ranks(plan: Plan) -> RenderableType:
    """Table with a column for each rank and their values in rows, so that it stays narrow."""
    shown = _shown(plan.ranks, lambda rank: (rank.memory.computed_bytes, rank.sent_bytes))
    table = _table("of a rank", right=[f"rank {rank.rank}{word}" for word, rank in shown])

    def row(title: str, value: Callable[[PlannedRank], str]) -> None:
        table.add_row(title, *(value(rank) for _, rank in shown))

    row("parameters", lambda rank: f"{rank.parameters:,}")
    if plan.parameters("frozen"):
        row("frozen", lambda rank: f"{rank.frozen:,}")
    for name in plan.ranks[0].memory.kinds:
        if any(rank.memory.kinds[name] for rank in plan.ranks):
            row(f"  {name}", lambda rank, name=name: size(rank.memory.kinds[name]))  # type: ignore[misc]
    if plan.on_device:
        row("memory on the GPU", lambda rank: size(rank.memory.device_bytes))
    row("memory on the host", lambda rank: size(rank.memory.host_bytes))
    row("for a moment at the start", lambda rank: size(rank.memory.start))
    if plan.step:
        row("sent to other ranks", lambda rank: f"{size(rank.sent_bytes)} in {rank.messages}")
    row("a fetch", lambda rank: size(rank.fetched_bytes))
    row("a push", lambda rank: size(rank.pushed_bytes))
    row("shards: segments", lambda rank: _talks(rank.shards))
    return table


def _talks(shards: Sequence[tuple[int, int]]) -> str:
    """Shards, with the number of segments of a rank's part on each."""
    if len(shards) > 2:
        return f"{shards[0][0]} to {shards[-1][0]}: {sum(count for _, count in shards):,}"
    return ", ".join(f"{shard}: {count:,}" for shard, count in shards) or "none"


def _exchanges(plan: Plan) -> RenderableType:
    table = _table("in a mini-batch, between ranks", "way", right=("messages", "bytes", "most of a rank"))
    rows = [(Text(passage.what), passage.way, [passage]) for passage in plan.step]
    for way in ("forward", "backward"):
        rows += [(Text("all", "bold"), way, [passage for passage in plan.step if passage.way == way])]
    for what, way, step in rows:
        messages = sum(int(passage.messages.sum()) for passage in step)
        sent = sum((passage.sent_bytes for passage in step), start=0 * plan.step[0].numbers)
        table.add_row(what, way, f"{messages:,}", size(int(sent.sum())), size(int(sent.sum(axis=1).max())))
    return table


def _shards(plan: Plan) -> RenderableType:
    kinds = [name for name in plan.shards[0].memory if any(shard.memory[name] for shard in plan.shards)]
    table = _table("shard", right=("segments", "parameters", *[f"bytes: {name}" for name in kinds], "bytes"))
    for word, shard in _shown(plan.shards, lambda shard: (shard.bytes, 0)):
        each = [size(shard.memory[name]) for name in kinds]
        table.add_row(f"{shard.shard}{word}", f"{shard.segments:,}", f"{shard.parameters:,}", *each, size(shard.bytes))
    return table


def _volume_rows(cost: Communication) -> list[tuple[str, str]]:
    """Rows of names and values."""
    of, speeds = cost.volumes, cost.speeds
    samples = f"{of.batch:,} samples" + f", {of.samples:,} on each of {of.replicas} replicas" * (of.replicas > 1)
    times = f"{of.data_bytes / of.weight_bytes:.3g} |W|"
    computed = f"{si(of.step_flop, 'flop')} in a step, {si(of.samples * of.flop, 'flop')} on a replica"
    if cost.compute_s is not None:
        computed += f": {short_time(cost.compute_s)}"
        computed += (
            f" at {si(speeds.flops, 'flop')} a second" if speeds.step_s is None and speeds.flops else ", as given"
        )
    return [
        ("|W|", f"{megabytes(of.weight_bytes)}: gradients"),
        ("|D|", f"{megabytes(of.data_bytes)}, {times}: inputs of layers with weights, of {samples}"),
        ("computed", computed),
        _links(speeds),
        *[("advice", sentence) for sentence in cost.advice],
        *(_exchange_rows(cost.exchange) if cost.exchange is not None else []),
    ]


def _links(speeds: Speeds) -> tuple[str, str]:
    return "links", f"{short_time(speeds.latency_s)} a message, {megabytes(speeds.bandwidth)} a second each way"


def _exchange_rows(exchange: Exchange) -> list[tuple[str, str]]:
    """Rows of names and sentences."""
    pushed, fetched = (si(size, "B") for size in (exchange.pushed_per_sample, exchange.fetched_per_sample))
    travels = f"; a push with a fetch travels for {short_time(exchange.travel_s)}" * (exchange.replicas > 1)
    share = ""
    if exchange.link_share is not None and exchange.replicas > 1:
        share = f"; the busiest link is in use for {100 * exchange.link_share:.3g} % of the time"
    rows = [("exchanged", f"{pushed} pushed and {fetched} fetched for each sample{travels}{share}")]
    if exchange.share is None or exchange.computed_s is None or exchange.waited_s is None:
        return [*rows, ("computing", "its share is not known: give the time of a mini-batch by --step, such as 0.2s")]
    computed = f"{plural(exchange.steps, 'mini-batch', 'mini-batches')}: {short_time(exchange.computed_s)}"
    waited = f"then {short_time(exchange.waited_s)} waited: {100 * exchange.share:.3g} % of the time is computing"
    rows.append(("computing", f"{computed}, {waited}"))
    if exchange.replicas == 1:
        return rows
    if exchange.steps_enough is not None:
        rows.append(
            (
                "diloco",
                f"with this wire, steps: {exchange.steps_enough:,} is the smallest that leaves {100 * ENOUGH:g} % "
                f"without delay; steps and delay: {exchange.steps_hidden:,} the smallest that hides the travel whole",
            )
        )
    return [*rows, ("machines", _gain(exchange.replicas, exchange.gain or 0.0))]


def _gain(replicas: int, gain: float) -> str:
    trained = f"{replicas} replicas train {gain:.3g} times the samples of one alone in a second"
    return trained if gain > 1 else f"{trained}: on these links one machine alone is faster"


def _sums_table(cost: Communication) -> RenderableType:
    """Ways to sum a gradient over the replicas."""
    best = min(one.seconds for one in cost.sums)
    table = _table("a gradient summed by", right=("chunks", "predicted", "times the fastest"))
    for one in cost.sums:
        table.add_row(one.way, f"{one.chunks:,}", short_time(one.seconds), f"{one.seconds / best:.3g}")
    return table


One = TypeVar("One")


def _shown(all_of_them: Sequence[One], needs: Callable[[One], tuple[int, int]]) -> list[tuple[str, One]]:
    """All items, or of many the largest and the smallest, each with a label."""
    if len(all_of_them) <= ROWS:
        return [("", one) for one in all_of_them]
    return [(", largest", max(all_of_them, key=needs)), (", smallest", min(all_of_them, key=needs))]


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _table(*left: str, right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in left:
        table.add_column(title, no_wrap=title == left[0])
    for title in right:
        table.add_column(title, justify="right")
    return table
