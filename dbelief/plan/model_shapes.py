"""A job's model as numbers: tensors, activations and exchanges of every rank, without allocating an array.

Sizes come from the model's own definitions: a layer's `shapes`, `fitting`, `sizes_of`, and the partition over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.job import AutoencoderModel, Job, LayersModel, StacksModel, ZooModel
from dbelief.nn import Network, SparseAutoencoder, build_autoencoder, build_network, image_of
from dbelief.nn.autoencoders.autoencoder import Eq1, step_shapes
from dbelief.nn.autoencoders.stack import sizes_of
from dbelief.nn.autoencoders.stacks import tensor_shapes
from dbelief.nn.layers.lcn import Lcn
from dbelief.partition import Grid, layout_of
from dbelief.partition.blocks import BlockParts
from dbelief.partition.cut import cut
from dbelief.partition.stacks import StackParts
from dbelief.partition.traffic import NetworkArrays, Passage, autoencoder_step, network_step

from .layers import FORWARD, REBUILDING, PlannedLayer, State, planned_layers
from .sample import Sample


@dataclass(frozen=True)
class Sketch:
    """A model on a grid of ranks.

    Attributes
    ----------
    layout
        Layout of the trained parameters.
    frozen, activations
        Counts by rank: of frozen tensors, and of what layers output and keep in a step.
    step
        Exchanges of the ranks in a step; none on one rank.
    drawn
        Initial values that are drawn at a time: of a layer, or of a row of blocks. 0: they are drawn while they are
        sent, as those of layers on one rank are.
    reads_sparse
        Whether the model on the host reads sparse rows.
    column_tensor
        Name of the tensor whose rows belong to columns of the inputs; None: there is none.
    reads
        Columns of bags by the table that is read for them.
    notes
        Remarks for the user, a sentence each.
    """

    layers: Sequence[PlannedLayer]
    layout: Layout
    frozen: Sequence[int]
    activations: Sequence[int]
    step: Sequence[Passage]
    drawn: int
    reads_sparse: bool = False
    column_tensor: str | None = None
    reads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def sketch(job: Job, sample: Sample, grid: Grid, samples: int) -> Sketch:
    """Sketch of the job's model, for mini-batches of `samples` samples.

    Raises
    ------
    ModelError
        It does not fit its inputs, or cannot be partitioned over several ranks.
    """
    model, host = job.model, select_backend("cpu")
    if isinstance(model, LayersModel | ZooModel):
        network = build_network(
            model.described(),
            model.loss,
            features=sample.features,
            outputs=sample.outputs,
            backend=host,
            tables={name: one.width for name, one in job.tables.items()},
            columns=sample.columns,
        )
        return _network(network, grid, samples)
    if isinstance(model, AutoencoderModel):
        layer = model.autoencoder
        built = build_autoencoder(layer.eq1, features=sample.features, image=layer.image, backend=host)
        return _autoencoder(built, math.prod(sample.features), grid, samples)
    assert isinstance(model, StacksModel), f"a model of kind {type(model).__name__} has no sample"
    return _stacks(model, image_of("stacks", sample.features, model.image), grid, samples)


def _network(network: Network, grid: Grid, samples: int) -> Sketch:
    layers = planned_layers(network.stages)
    if grid.size == 1:
        first = next(place for place, layer in enumerate(layers) if layer.tensors)
        kept = sum(math.prod(stage.outputs) for stage in network.stages)
        slopes = sum(math.prod(stage.inputs) for stage in network.stages[first + 1 :]) + network.outputs
        layout = Layout.whole(network.shapes)
        reads = network.reads_sparse, network.column_tensor, network.reads
        return Sketch(layers, layout, [0], [samples * (kept + slopes)], [], 0, *reads)
    parts = cut(network.stages, grid)
    arrays = NetworkArrays.of(parts, samples)
    first = next(place for place, part in enumerate(parts) if part.stage.parameters)
    activations = []
    for rank in range(grid.size):
        made = sum(math.prod(part.shape(rank)) for part in parts)
        read = [part.inputs[rank].size * math.prod(part.stage.inputs[2:]) for part in parts]
        partial = sum(math.prod(shape) for part in parts if part.shares for _, shape in part.tensors)
        activations.append(samples * (made + read[0] + sum(read[first + 1 :]) + network.outputs) + partial)
    drawn = max(layer.parameters for layer in layers)
    return Sketch(layers, layout_of(network, grid), [0] * grid.size, activations, network_step(parts, arrays), drawn)


def _autoencoder(model: SparseAutoencoder, features: int, grid: Grid, samples: int) -> Sketch:
    parts = BlockParts.of(model.blocks, model.eq1, grid)
    tensors: dict[str, tuple[int, ...]] = {"weight": model.blocks.w_shape, "alpha": (1,)}
    flop = REBUILDING * FORWARD * math.prod(model.blocks.w_shape)
    layer = PlannedLayer("autoencoder", (*parts.sides, model.eq1.maps), tensors, features, flop)
    step = autoencoder_step(parts, model.eq1.maps, samples) if grid.size > 1 else []
    kept = _kept([(parts, model.eq1)], grid, samples)
    return Sketch([layer], parts.layout, [0] * grid.size, kept, step, math.prod(model.blocks.w_shape[1:]))


def _stacks(model: StacksModel, image: tuple[int, int, int], grid: Grid, samples: int) -> Sketch:
    stacks = [(Eq1(**stack.eq1), Lcn(**stack.contrast.model_dump())) for stack in model.stacks]
    sizes, tensors = sizes_of(image, stacks), tensor_shapes(image, stacks)
    first, last = model.only or 1, model.only or len(stacks)
    layers = []
    for place, (one, own) in enumerate(zip(sizes, tensors, strict=True), start=1):
        state: State = "frozen" if place < first else "trained" if place <= last else "later"
        products = {"frozen": 1, "trained": REBUILDING + (place > first), "later": 0}[state]
        flop = products * FORWARD * math.prod(one.blocks.w_shape)
        layers.append(PlannedLayer(f"stack {place}", one.output or one.pooled, own, math.prod(one.image), flop, state))
    parts = StackParts(sizes[:last], stacks, first, grid)
    kept = _kept([(own, eq1) for own, (eq1, _) in zip(parts.parts, stacks, strict=False)], grid, samples)
    ways = 2 if model.only is None else 1  # activations, and their gradients where stacks are trained below others
    activations = [numbers + ways * samples * parts.carried(rank) for rank, numbers in enumerate(kept)]
    frozen = [parts.frozen(rank) for rank in range(grid.size)]
    filters = sum(layer.parameters - 1 for layer in layers)
    notes = [f"all stacks have {filters:,} weights of filters, and an alpha each"]
    step = parts.step(samples) if grid.size > 1 else []
    drawn = max(math.prod(one.blocks.w_shape[1:]) for one in sizes[first - 1 : last])
    return Sketch(layers, parts.layout, frozen, activations, step, drawn, notes=notes)


def _kept(layers: Sequence[tuple[BlockParts, Eq1]], grid: Grid, samples: int) -> list[int]:
    """By rank, count of numbers that block-local layers keep in a step."""
    return [sum(_kept_by(parts, eq1, rank, samples) for parts, eq1 in layers) for rank in range(grid.size)]


def _kept_by(parts: BlockParts, eq1: Eq1, rank: int, samples: int) -> int:
    if not parts.blocks[rank].size:
        return 0
    seen = parts.seen[rank].shape if len(parts.blocks) > 1 else parts.sides
    shapes = step_shapes(parts.part(rank), eq1, samples, (seen[0], seen[1]))
    if shapes["seen"] == shapes["maps"]:
        del shapes["seen"]
    return sum(math.prod(shape) for shape in shapes.values())
