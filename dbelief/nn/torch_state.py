"""The state of a torch module from a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dbelief.errors import DataError, ModelError


def fill_module(module: Any, file: Path) -> None:
    """Set the parameters and buffers of a torch module to those of a model file, which must have exactly its names.

    Raises
    ------
    ModelError
        torch is not installed, it is no module, or names or shapes differ; then the module is unchanged or, where a
        shape differs, partly filled, as by `load_state_dict`.
    DataError
        The file cannot be read.
    """
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        raise ModelError(f"a torch module needs torch: pip install 'dbelief[torch]' ({error})") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"into: must be a torch module, not a {type(module).__name__}")
    try:
        module.load_state_dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file}: is no safetensors file, or a damaged one ({error})") from error
    except RuntimeError as error:
        raise ModelError(f"{file}: holds another model: {' '.join(str(error).split())}") from error
