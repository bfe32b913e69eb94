"""Models: what dbelief asks of one, and layered networks that answer it."""

from .build import build_network, load_python_model
from .model import Array, Batch, Evaluates, Model
from .network import Network

__all__ = ["Array", "Batch", "Evaluates", "Model", "Network", "build_network", "load_python_model"]
