"""Report on the neurons of a run's autoencoders: filters, optimal stimuli, and selectivity for labelled images."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from safetensors.numpy import load_file

from dbelief.arrays.backend import Backend, select_backend
from dbelief.data import Samples, load
from dbelief.errors import DataError, UserError, WriteFailed
from dbelief.job import AutoencoderModel, Filters, Job, NpzData, StacksModel, load_job
from dbelief.nn import image_of
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.autoencoders.stacks import Stacks, tensor_name
from dbelief.nn.layers.lcn import Lcn
from dbelief.rundir.result import result_file
from dbelief.tools.report.neuron_pictures import ROWS, choose_neurons, draw_filters, draw_stimuli
from dbelief.tools.report.selectivity import Selectivity, selectivity, selectivity_table
from dbelief.training.pretrained import load_pretrained

log = logging.getLogger(__name__)

_SHOWN = 2_000  # images of the job's data that neurons are evaluated on, at most; fewer where there are many neurons
_RESPONSES = 50_000_000
_AT_A_TIME = 100


@dataclass(frozen=True)
class _Network:
    """The stacks of a run up to the highest trained one, with all tensors."""

    image: tuple[int, int, int]
    stacks: list[tuple[Eq1, Lcn]]
    tensors: dict[str, np.ndarray]

    def neurons(self, backend: Backend) -> Neurons:
        return Neurons(self.image, self.stacks, self.tensors, backend)

    def untrained(self, seed: int, backend: Backend) -> Neurons:
        drawn = Stacks(self.image, self.stacks, None, {}, backend).parameters(np.random.default_rng(seed))
        return Neurons(self.image, self.stacks, dict(drawn), backend)


def report_neurons(run: Path, output: Path, title: str, labelled: Path | None) -> list[Path]:
    """Draw stimuli.png, and filters.png if the run has trained the lowest stack; print the neurons' selectivity.

    For a model without autoencoders, do nothing.

    Parameters
    ----------
    labelled
        An .npz file of images and labels.

    Returns
    -------
    list of Path
        Paths of the plots.

    Raises
    ------
    UserError
        The images do not fit the network's input, or cannot be read.
    WriteFailed
        The plots cannot be written.
    """
    job = load_job(run / "job.yaml")
    if not isinstance(job.model, AutoencoderModel | StacksModel):
        if labelled is not None:
            raise UserError(f"--images: job {job.name} has no autoencoder's neurons")
        return []
    try:
        own = _tensors(job, run)
    except UserError as error:  # nothing has been written yet
        log.warning(f"no pictures of neurons: {error}")
        return []
    try:
        filters = _draw_filters(job, own, output, title)
        try:
            shown = _images_of(job)
            network = _network(job, shown.features, own)
        except UserError as error:  # the data, or lower stacks, are not on this machine; the report continues
            if labelled is not None:
                raise
            log.warning(f"no stimuli: {error}")
            return filters
        return [*filters, _tell(network, select_backend(job.device), job.seed, output, title, shown, labelled)]
    except OSError as error:
        raise WriteFailed(f"{output}: the pictures cannot be drawn: {error.strerror}") from error


def _tensors(job: Job, run: Path) -> dict[str, np.ndarray]:
    """Tensors that the run has trained, by their names in the stacks."""
    with result_file(run) as (file, _):
        held = load_file(file)
    return {tensor_name(1, name): held[name] for name in held} if isinstance(job.model, AutoencoderModel) else held


def _draw_filters(job: Job, own: dict[str, np.ndarray], output: Path, title: str) -> list[Path]:
    """Draw the filters of the layer that reads pixels, if the run has trained them."""
    name, path = tensor_name(1, "weight"), output / "filters.png"
    if name not in own:
        return []
    draw_filters(own[name], _lowest(job).block, path, title)
    return [path]


def _tell(
    network: _Network, backend: Backend, seed: int, output: Path, title: str, shown: Samples, labelled: Path | None
) -> Path:
    """Print the table where images are labelled, and draw the neurons selected by it, or by their kurtosis."""
    neurons = network.neurons(backend)
    if labelled is None:
        images = _gathered(shown, neurons, min(len(shown), _SHOWN, max(_AT_A_TIME, _RESPONSES // neurons.count)))
        chosen = choose_neurons(_responses(neurons, images))
    else:
        split = _labelled(labelled, neurons)
        images = _gathered(split, neurons, len(split))
        trained = selectivity(_responses(neurons, images), split.targets)
        random = selectivity(_responses(network.untrained(seed, backend), images), split.targets)
        Console().print(selectivity_table(random, trained))
        chosen = _best_of(trained)
    path = output / "stimuli.png"
    draw_stimuli(neurons, chosen, images, _responses(neurons, images), path, title, seed)
    return path


def _best_of(tests: list[Selectivity]) -> list[tuple[str, int, int]]:
    """Label, neuron and sign of the best neurons of each class."""
    each = max(1, ROWS // len(tests))
    best = [one for test in tests for one in test.best(each)]
    return [(f"neuron {neuron}\n{100 * right:.0f} % right", neuron, sign) for neuron, sign, right in best]


def _lowest(job: Job) -> Filters:
    """The receptive fields of the layer that reads pixels."""
    if isinstance(job.model, StacksModel):
        return job.model.stacks[0]
    assert isinstance(job.model, AutoencoderModel), f"no autoencoder: {job.model}"
    return job.model.autoencoder


def _network(job: Job, features: tuple[int, ...], own: dict[str, np.ndarray]) -> _Network:
    if isinstance(job.model, StacksModel):
        image, stacks, given = load_pretrained(job, job.model, features)
        return _Network(image, stacks[: job.model.only], {**given, **own})
    assert isinstance(job.model, AutoencoderModel), f"no autoencoder: {job.model}"
    layer = job.model.autoencoder
    return _Network(image_of("autoencoder", features, layer.image), [(Eq1(**layer.eq1), Lcn())], own)


def _images_of(job: Job) -> Samples:
    """Images of the test set; without one, of the validation set, or else of the training set."""
    data = load(job.data, job.folder)
    found = data.test or data.validation or data.train
    if found is None:
        raise DataError(f"job {job.name}: has no data to show to its neurons")
    return found.dense()


def _labelled(path: Path, neurons: Neurons) -> Samples:
    """All images of a file, labelled.

    Raises
    ------
    DataError
    """
    data = load(NpzData(source="npz", file=str(path.absolute()), validation=0, test=0), Path())
    split = data.train
    if split is None or data.classes is None or data.classes < 2:
        raise DataError(f"{path}: its targets must be labels of two classes or more")
    counts = np.bincount(split.targets, minlength=data.classes)
    if counts.min() < 2:
        raise DataError(f"{path}: class {int(counts.argmin())} has {int(counts.min())} images, must have at least 2")
    if split.inputs[0].size != np.prod(neurons.image):
        raise DataError(f"{path}: holds {split.inputs[0].size} numbers an image, the network sees {neurons.image}")
    return split


def _gathered(split: Samples, neurons: Neurons, n: int) -> np.ndarray:
    """The first n images (n, height, width, channels), scaled as in training."""
    inputs = split.gather(np.arange(n), split.buffer(n)).inputs
    return np.asarray(inputs).reshape(n, *neurons.image)


def _responses(neurons: Neurons, images: np.ndarray) -> np.ndarray:
    firsts = range(0, len(images), _AT_A_TIME)
    return np.concatenate([neurons.responses(images[first : first + _AT_A_TIME]) for first in firsts])
