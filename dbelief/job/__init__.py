"""The job file: what is trained, on what, how, and for how long."""

from .asynchronous import Asynchronous
from .autoencoder import Autoencoder, AutoencoderModel, Filters, StacksModel
from .comparison import Comparison, Every
from .downpour import Downpour, WarmStart
from .elastic import Elastic
from .error_messages import nearest
from .job import Deadlines, Divergence, Evaluate, Job, Limits, Snapshots
from .layers import Layer
from .load import build_job, load_job, parse_job
from .model import LayersModel, Model, PythonModel, ZooModel
from .paths import resolve
from .rules import AdagradRule, AdamRule, MomentumRule, Rule, SgdRule
from .sandblaster import Sandblaster
from .schedule import ConstantSchedule, PolySchedule, Scale, Schedule, StepSchedule, WarmUp
from .schema import schema
from .sources import CsvData, Data, DigitsData, IdxData, LibsvmData, NoData, NpzData, SyntheticData
from .strategy import Strategy
from .synchronous import Reduction, SyncSgd
from .trials import ComparisonFile, Trial
from .wire import PushCodec, Wire

__all__ = [
    "AdagradRule",
    "AdamRule",
    "Asynchronous",
    "Autoencoder",
    "AutoencoderModel",
    "Comparison",
    "ComparisonFile",
    "ConstantSchedule",
    "CsvData",
    "Data",
    "Deadlines",
    "DigitsData",
    "Divergence",
    "Downpour",
    "Elastic",
    "Evaluate",
    "Every",
    "Filters",
    "IdxData",
    "Job",
    "Layer",
    "LayersModel",
    "LibsvmData",
    "Limits",
    "Model",
    "MomentumRule",
    "NoData",
    "NpzData",
    "PolySchedule",
    "PushCodec",
    "PythonModel",
    "Reduction",
    "Rule",
    "Sandblaster",
    "Scale",
    "Schedule",
    "SgdRule",
    "Snapshots",
    "StacksModel",
    "StepSchedule",
    "Strategy",
    "SyncSgd",
    "SyntheticData",
    "Trial",
    "WarmStart",
    "WarmUp",
    "Wire",
    "ZooModel",
    "build_job",
    "load_job",
    "nearest",
    "parse_job",
    "resolve",
    "schema",
]
