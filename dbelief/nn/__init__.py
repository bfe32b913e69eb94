"""Models: what dbelief asks of one, and layered networks and an autoencoder that answer it."""

from .autoencoders.autoencoder import SparseAutoencoder
from .bag_rows import BagRows, KeyRows
from .build import build_autoencoder, build_layer, build_network, image_of, load_python_model
from .layers.convolution import Conv
from .layers.cross import Cross
from .layers.dropout import Dropout, batch_key
from .layers.embedding import Embedding
from .layers.image import Image
from .layers.layer import Dense, Elementwise, Shape
from .layers.local import Local
from .layers.table_bag import FactorizationMachine, TableBag, TableLayer
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
from .network import NO_NUMBERS, Network, Stage, stages, step_settings
from .sparse_rows import SparseRows

__all__ = [
    "NO_NUMBERS",
    "Array",
    "BagRows",
    "Batch",
    "Conv",
    "Cross",
    "Dense",
    "Dropout",
    "Elementwise",
    "Embedding",
    "Evaluates",
    "FactorizationMachine",
    "HasBuffers",
    "HasLogProbabilities",
    "Image",
    "KeyRows",
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
    "TableBag",
    "TableLayer",
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
