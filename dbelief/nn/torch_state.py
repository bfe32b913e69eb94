"""The state of a torch module as float32 numbers on the shards, and from a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from dbelief.core.whole_numbers import change, join, split, type_in_parts, whole_type
from dbelief.errors import DataError, ModelError

_TYPES = (
    *("float32", "bfloat16", "float16"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""Types of parameters and buffers that shards hold exactly, or have float32 masters of."""
_AND_THEN = {
    "float64": "float32 would round it: call module.float() before the optimiser is made, and give it float32 inputs",
    "complex64": "hold it as float32 with a last axis of 2, and call torch.view_as_complex in forward",
    "complex128": "hold it as float32 with a last axis of 2, and call torch.view_as_complex in forward",
}


def type_on_shards(name: str, own: Any) -> str:
    """Type of a tensor of a module's state, as `Box.dtype` has it.

    Raises
    ------
    ModelError
        Shards would change its values, or it has no shape yet; names the way out.
    """
    from torch.nn.parameter import UninitializedTensorMixin

    if isinstance(own, UninitializedTensorMixin):
        raise ModelError(f"{name!r} has no shape yet (a lazy module): call the module on a batch once before")
    if own.device.type == "meta":
        raise ModelError(f"{name!r} has no values (device meta): move the module by to_empty, and set them, before")
    dtype = str(own.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        way_out = _AND_THEN.get(dtype, f"it must be one of {', '.join(_TYPES)}")
        raise ModelError(f"{name!r} is {own.dtype}, and shards hold float32: {way_out}")
    return type_in_parts(dtype)


def shape_on_shards(own: Any) -> tuple[int, ...]:
    """Shape of what `numbers_of` gives."""
    dtype = whole_type(_in_parts(own))
    return tuple(own.shape) if dtype is None else split(np.zeros(own.shape, dtype)).shape


def numbers_of(own: Any) -> np.ndarray:
    """A tensor as the shards have it: float32 on the host, a view where it is that already; whole numbers in parts."""
    host = own.detach().cpu()
    if whole_type(_in_parts(own)) is not None:
        return split(host.numpy())
    numbers: np.ndarray = host.float().numpy()
    return numbers


def change_of(own: Any, before: np.ndarray) -> np.ndarray:
    """What to add to `before` on the shards, so that it becomes a tensor's values; 0 where an infinity stayed."""
    if whole_type(_in_parts(own)) is not None:
        return change(before, own.detach().cpu().numpy())
    numbers = numbers_of(own)
    changed: np.ndarray = np.subtract(numbers, before, out=np.zeros_like(before), where=numbers != before)
    return changed


def set_numbers(own: Any, numbers: np.ndarray) -> None:
    """Set a tensor from what `numbers_of` gave, or from sums and averages of that: to the nearest of its type."""
    import torch

    if (dtype := whole_type(_in_parts(own))) is not None:
        source = torch.from_numpy(join(numbers, dtype))
    else:
        source = torch.from_numpy(numbers)
        source = source if own.dtype.is_floating_point else source.round()
    with torch.no_grad():
        own.copy_(source)


def _in_parts(own: Any) -> str:
    return type_in_parts(str(own.dtype).removeprefix("torch."))


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
