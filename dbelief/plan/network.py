"""Resource estimate of a network of the model zoo; also of one with branches and heads, which no job can train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dbelief.arrays.backend import select_backend
from dbelief.job import Layer
from dbelief.job.zoo import Branches, Head, Network, Words
from dbelief.nn import build_layer, stages

from .communication_cost import Communication, communication
from .layers import PlannedLayer, Shape, planned_layers
from .speeds import GIGABIT, Speeds
from .volumes import Volumes


@dataclass(frozen=True)
class NetworkPlan:
    """Transfer and computation of training a network, independent of a job."""

    network: Network
    layers: Sequence[PlannedLayer]
    communication: Communication

    @property
    def volumes(self) -> Volumes:
        """Volumes of a step."""
        return self.communication.volumes

    def described(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "network": self.network.name,
            "about": self.network.about,
            "parameters": self.volumes.parameters,
            "layers": [{**asdict(layer), "parameters": layer.parameters} for layer in self.layers],
            "communication": self.communication.described(),
        }


def plan_network(network: Network, replicas: int, samples: int, speeds: Speeds = GIGABIT) -> NetworkPlan:
    """Plan mini-batches of `samples` samples on each of `replicas` replicas."""
    layers = network_layers(network)
    return NetworkPlan(network, layers, communication(Volumes.of(layers, replicas, samples), speeds))


def network_layers(network: Network) -> list[PlannedLayer]:
    """The network's layers in order; parallel branches count as one layer, and so does a head."""
    found: list[PlannedLayer] = []
    counts: Counter[str] = Counter()
    inputs = _features(network)
    for one in network.layers:
        kind, layers, outputs = _part(one, inputs)
        counts[kind] += 1
        found.append(_one(f"{kind}{counts[kind]}", layers, outputs))
        inputs = inputs if isinstance(one, Head) else outputs
    return found


def _features(network: Network) -> Shape:
    """Shape of a sample, from the first layer."""
    assert not isinstance(network.layers[0], Branches | Head), f"{network.name} does not begin with an image"
    image = Layer.model_validate(network.layers[0]).image
    assert image is not None, f"{network.name} does not begin with an image"
    return (image.height * image.width * image.channels,)


def _part(one: Words | Branches | Head, inputs: Shape) -> tuple[str, dict[str, PlannedLayer], Shape]:
    """Name of a stage, its layers by their path, and its output shape."""
    if isinstance(one, Branches):
        paths = [_chain(path, inputs) for path in one.paths]
        ends = [path[-1].outputs for path in paths]
        named = {f"{place}.{own.name}": own for place, path in enumerate(paths, start=1) for own in path}
        return "branches", named, (*ends[0][:2], sum(channels for *_, channels in ends))
    layers = _chain(one.layers if isinstance(one, Head) else [one], inputs)
    kind = "head" if isinstance(one, Head) else layers[0].name[:-1]
    return kind, {own.name if isinstance(one, Head) else "": own for own in layers}, layers[-1].outputs


def _chain(words: Sequence[Words], inputs: Shape) -> list[PlannedLayer]:
    layers = [Layer.model_validate(one) for one in words]
    built = [build_layer(place, one.kind, one.options) for place, one in enumerate(layers, start=1)]
    return planned_layers(stages(built, inputs, select_backend("cpu")))


def _one(name: str, layers: Mapping[str, PlannedLayer], outputs: Shape) -> PlannedLayer:
    tensors = {
        ".".join(filter(None, (name, path, tensor.rpartition(".")[2]))): shape
        for path, layer in layers.items()
        for tensor, shape in layer.tensors.items()
    }
    multiplied, flop = (sum(each) for each in zip(*((x.multiplied, x.flop) for x in layers.values()), strict=True))
    return PlannedLayer(name, outputs, tensors, multiplied, flop)
