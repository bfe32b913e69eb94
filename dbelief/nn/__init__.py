"""Models: what dbelief asks of one, and layered networks and an autoencoder that answer it."""

from .autoencoders.autoencoder import SparseAutoencoder
from .build import build_autoencoder, build_layer, build_network, image_of, load_python_model
from .layers.convolution import Conv
from .layers.dropout import Dropout, batch_key
from .layers.embedding import Embedding
from .layers.image import Image
from .layers.layer import Dense, Elementwise, Shape
from .layers.local import Local
from .model import (
    Array,
    Batch,
    Evaluates,
    HasBuffers,
    HasLogProbabilities,
    LeavesOut,
    Model,
    ReadsColumns,
    ReadsSparse,
    SharesTensors,
    absent_of,
)
from .network import Network, Stage, stages, step_settings
from .sparse_rows import SparseRows

__all__ = [
    "Array",
    "Batch",
    "Conv",
    "Dense",
    "Dropout",
    "Elementwise",
    "Embedding",
    "Evaluates",
    "HasBuffers",
    "HasLogProbabilities",
    "Image",
    "LeavesOut",
    "Local",
    "Model",
    "Network",
    "ReadsColumns",
    "ReadsSparse",
    "Shape",
    "SharesTensors",
    "SparseAutoencoder",
    "SparseRows",
    "Stage",
    "absent_of",
    "batch_key",
    "build_autoencoder",
    "build_layer",
    "build_network",
    "image_of",
    "load_python_model",
    "stages",
    "step_settings",
]
