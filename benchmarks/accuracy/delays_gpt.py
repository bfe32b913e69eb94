"""A small character GPT as a job's model: that of `examples/scripts/char_gpt.py` with 2 layers of 64, context 64."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from dbelief.nn.torch_model import TorchModel

CONTEXT, LETTERS = 64, 65

with mock.patch.object(sys, "argv", ["char_gpt", "no text"]):  # it reads the name of one
    sys.path.append(str(Path(__file__).parents[2] / "examples" / "scripts"))
    gpt: Any = importlib.import_module("char_gpt")
gpt.CONTEXT, gpt.WIDTH, gpt.HEADS, gpt.LAYERS = CONTEXT, 64, 4, 2


def loss_of(outputs: Any, targets: Any) -> Any:
    """Mean cross-entropy of the letters that follow; targets are their numbers as float32, (m, CONTEXT)."""
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.long().flatten())


def network() -> Any:
    module = gpt.Gpt(LETTERS)
    module.output = torch.nn.Linear(gpt.WIDTH, LETTERS)  # weights of its own
    return module


def model() -> TorchModel:
    """What the job file names."""
    return TorchModel(network, loss_of)
