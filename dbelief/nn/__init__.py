"""Models: what dbelief asks of one, and layered networks that answer it."""

from .build import build_network, load_python_model
from .dropout import Dropout
from .image import Image
from .layers import Dense, Shape
from .model import Array, Batch, Evaluates, Model
from .network import Network, Stage, step_settings

__all__ = [
    "Array",
    "Batch",
    "Dense",
    "Dropout",
    "Evaluates",
    "Image",
    "Model",
    "Network",
    "Shape",
    "Stage",
    "build_network",
    "load_python_model",
    "step_settings",
]
