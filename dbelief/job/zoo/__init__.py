"""The model zoo: networks of the papers, as definitions in the words of a job file (`model: {zoo: lenet}`)."""

from collections.abc import Mapping

from .definition import Branches, Head, Loss, Name, Network, Words
from .googlenet import GOOGLENET
from .networks import ALEXNET, LENET, NIN, SPEECH, VGG19

NETWORKS: Mapping[str, Network] = {one.name: one for one in (LENET, ALEXNET, NIN, GOOGLENET, VGG19, SPEECH)}
"""All of them, by name."""

__all__ = ["NETWORKS", "Branches", "Head", "Loss", "Name", "Network", "Words"]
