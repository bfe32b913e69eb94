"""Models: what dbelief asks of one, and layered networks and an autoencoder that answer it."""

from .autoencoder import SparseAutoencoder
from .build import build_autoencoder, build_layer, build_network, image_of, load_python_model
from .convolution import Conv
from .dropout import Dropout, batch_key
from .image import Image
from .layers import Dense, Pointwise, Shape
from .local import Local
from .model import Array, Batch, Evaluates, Model, SharesTensors, TellsClasses
from .network import Network, Stage, stages, step_settings

__all__ = [
    "Array",
    "Batch",
    "Conv",
    "Dense",
    "Dropout",
    "Evaluates",
    "Image",
    "Local",
    "Model",
    "Network",
    "Pointwise",
    "Shape",
    "SharesTensors",
    "SparseAutoencoder",
    "Stage",
    "TellsClasses",
    "batch_key",
    "build_autoencoder",
    "build_layer",
    "build_network",
    "image_of",
    "load_python_model",
    "stages",
    "step_settings",
]
