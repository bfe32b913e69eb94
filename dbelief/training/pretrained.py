"""Pretrained stacks: loaded from the files of earlier runs, for a job that trains others on top, or all together.

Every replica reads the files, since stacks that are not trained are not parameters: they are not in the named vector,
nor in the run's model file. With a digest of the files' content the coordinator checks that all replicas have the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dbelief.arrays.backend import Backend
from dbelief.data.files.data_file import file_at
from dbelief.data.files.locations import exists
from dbelief.errors import DataError, ModelError, UserError
from dbelief.job import Job, StacksModel, place
from dbelief.nn import image_of
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stacks import Stacks, tensor_shapes
from dbelief.nn.layers.lcn import Lcn
from dbelief.rundir.result import result_file
from dbelief.rundir.stored.copies import local_copy
from dbelief.url import Url

Image = tuple[int, int, int]


def build_stacks(job: Job, model: StacksModel, features: tuple[int, ...], backend: Backend) -> tuple[Stacks, str]:
    """The job's stacks, and the sha256 of pretrained tensors ("" for none); see `load_pretrained`."""
    image, stacks, given = load_pretrained(job, model, features)
    return Stacks(image, stacks, model.only, given, backend), _digest(given)


def load_pretrained(
    job: Job, model: StacksModel, features: tuple[int, ...]
) -> tuple[Image, list[tuple[Eq1, Lcn]], dict[str, np.ndarray]]:
    """The lowest stack's input, all stacks, and the pretrained tensors of earlier runs, by name.

    Parameters
    ----------
    features : tuple of int
        Shape of a sample.

    Raises
    ------
    ModelError
        The stacks do not fit; a stack below the trained one is in no file, or has another shape there: names file and
        tensor; a file is damaged.
    RuntimeFailure
        No snapshot set of an unfinished run is complete.
    """
    image = image_of("stacks", features, model.image)
    stacks = [(Eq1(**stack.eq1), Lcn(**stack.contrast.model_dump())) for stack in model.stacks]
    shapes = tensor_shapes(image, stacks)[: model.only]
    given: dict[str, np.ndarray] = {}
    for text in model.trained:
        given |= _held(job, text, {name: shape for stack in shapes for name, shape in stack.items()})
    below = shapes[: (model.only or 1) - 1]
    for name in (name for stack in below for name in stack):
        if name not in given:
            searched = ", ".join(str(place(text, job.folder)) for text in model.trained)
            where = f"which is not in {searched}" if searched else "and names no run that holds it"
            raise ModelError(f"model.trained: stack {model.only} is trained on what {name!r} gives, {where}")
    return image, stacks, given


def _held(job: Job, text: str, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Those of the wanted tensors that a run or a model file contains."""
    where = place(text, job.folder)
    try:
        if exists(where):
            with file_at(where).open_whole() as file:
                return _read(Path(file.name), where, wanted)
        with local_copy(where, parameters=True) as run:
            if not (run / "job.yaml").is_file():
                known = "" if Path(text).is_absolute() else "; a relative path starts from the job file's folder"
                raise UserError(f"{where} is neither a run folder nor a model file{known}")
            with result_file(run) as (result, _):
                return _read(result, where, wanted)
    except UserError as error:
        raise ModelError(f"model.trained: {error}") from error


def _read(file: Path, named: Path | Url, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    held: dict[str, np.ndarray] = {}
    try:
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                if name in wanted:
                    held[name] = tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{named}: cannot be read as a model file: {error}") from error
    if not held:
        raise UserError(f"{named} holds none of {', '.join(wanted)}")
    for name, values in held.items():
        if values.shape != wanted[name] or values.dtype != np.float32:
            there, here = f"{values.dtype} {values.shape}", f"float32 {wanted[name]}"
            raise UserError(f"{named}: tensor {name!r} is {there} there, and {here} in the job's model")
    return held


def _digest(given: Mapping[str, np.ndarray]) -> str:
    if not given:
        return ""
    found = hashlib.sha256()
    for name in sorted(given):
        found.update(name.encode() + b"\0" + given[name].tobytes())
    return found.hexdigest()
