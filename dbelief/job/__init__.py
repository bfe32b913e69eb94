"""The job file: what is trained, on what, how, and for how long."""

from .comparison import Comparison, Every
from .document.error_messages import nearest
from .document.paths import place, resolve, variables
from .job import Job
from .limits import Limits
from .load import build_job, load_job, parse_job
from .metrics import OwnMetric
from .models.autoencoder import AutoencoderModel, Filters, StacksModel
from .models.layers import Layer
from .models.model import LayersModel, PythonModel, ScriptModel, ZooModel
from .schedule import ConstantSchedule, CosineSchedule, PolySchedule, Scale, StepSchedule
from .schema import schema
from .sources import (
    CsvData,
    Data,
    DigitsData,
    IdxData,
    LibsvmData,
    NoData,
    NpzData,
    ScriptData,
    Streamed,
    SyntheticData,
)
from .strategies.asynchronous import Asynchronous
from .strategies.diloco import Diloco
from .strategies.downpour import Downpour
from .strategies.elastic import Elastic
from .strategies.rules import AddRule
from .strategies.sandblaster import Sandblaster
from .strategies.synchronous import Reduction, SyncSgd
from .streamed_sources import BagsData, ImagesData, LinesData, ParquetData, PythonData, TokensData
from .trials import ComparisonFile, Trial
from .wire import PushCodec, Wire

__all__ = [
    "AddRule",
    "Asynchronous",
    "AutoencoderModel",
    "BagsData",
    "Comparison",
    "ComparisonFile",
    "ConstantSchedule",
    "CosineSchedule",
    "CsvData",
    "Data",
    "DigitsData",
    "Diloco",
    "Downpour",
    "Elastic",
    "Every",
    "Filters",
    "IdxData",
    "ImagesData",
    "Job",
    "Layer",
    "LayersModel",
    "LibsvmData",
    "Limits",
    "LinesData",
    "NoData",
    "NpzData",
    "OwnMetric",
    "ParquetData",
    "PolySchedule",
    "PushCodec",
    "PythonData",
    "PythonModel",
    "Reduction",
    "Sandblaster",
    "Scale",
    "ScriptData",
    "ScriptModel",
    "StacksModel",
    "StepSchedule",
    "Streamed",
    "SyncSgd",
    "SyntheticData",
    "TokensData",
    "Trial",
    "Wire",
    "ZooModel",
    "build_job",
    "load_job",
    "nearest",
    "parse_job",
    "place",
    "resolve",
    "schema",
    "variables",
]
