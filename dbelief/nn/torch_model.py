"""A torch module and its loss as a model of a job.

    # digits.py, and in the job file  model: {python: "digits.py:model"}
    def model():
        return TorchModel(lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), nn.CrossEntropyLoss())

The module's parameters are no tensors of its own: before each pass they are pointed at the job's flat vector. Gradients
are copied from where autograd makes them: a parameter for which it makes none took no part, and is left as it is by the
rule. CuPy's arrays are taken in the same way, which has not been verified on a device.

What a pass draws (dropout) is a function of the job's seed and the bits of the batch's inputs, as in `dropout.py`: a
batch that is computed twice has the same gradient, and a job that is run twice has the same model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError

from .layers.dropout import batch_key
from .model import Array, Batch, Tensors
from .torch_state import change_of, numbers_of, set_numbers, type_on_shards
from .workspace import Workspace

_GENERATORS = threading.RLock()
"""Held while torch's generators have a seed of ours: all threads of a process share them."""
_SCRIPT = "a script may have it: see dbelief help pytorch_script"


class TorchModel:
    """A torch module and a loss (`Model`, `Evaluates` and `LeavesOut`). For one thread at a time.

    Parameters
    ----------
    build
        Gives a new module at each call: a class, or a function. Its parameters are float32, and all of them trained.
    loss
        Called with the module's outputs and the batch's targets; gives the mean loss over the batch.

    Raises
    ------
    ModelError
        torch is not installed; `build` gives no module, or one without parameters; a parameter or a floating buffer is
        not float32; or a parameter is frozen.
    """

    def __init__(self, build: Callable[[], Any], loss: Callable[[Any, Any], Any]) -> None:
        try:
            import torch
        except ImportError as error:
            raise ModelError(f"TorchModel needs torch: pip install 'dbelief[torch]' ({error})") from error
        if isinstance(build, torch.nn.Module):
            raise ModelError("TorchModel takes what makes the module, a class or a function, not the module itself")
        self._torch = torch
        self._build = build
        self._loss = loss
        self._seed = 0
        self._work: Workspace | None = None
        self._absent: Collection[str] = ()
        self._module = self._made(0)
        _check(self._module)

    def _made(self, seed: int) -> Any:
        """A new module whose random values come from a seed; torch's own generator stays as it was."""
        with _GENERATORS, self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed)
            module = self._build()
        if not isinstance(module, self._torch.nn.Module):
            raise ModelError(f"TorchModel: what builds the module gave a {type(module).__name__}")
        return module

    @property
    def also(self) -> Mapping[str, Sequence[str]]:
        """Further names of parameters that are used twice (tied weights), by the first name."""
        names: dict[int, list[str]] = {}
        for name, own in self._module.named_parameters(remove_duplicate=False):
            names.setdefault(id(own), []).append(name)
        return {first: others for first, *others in names.values() if others}

    @property
    def buffers(self) -> Mapping[str, str]:
        """Types of the module's persistent buffers on the shards, by torch's names."""
        return {name: type_on_shards(name, own) for name, own in self._buffers().items()}

    @property
    def absent(self) -> Collection[str]:
        """Names of the parameters for which the last `loss_and_gradient` made no gradient."""
        return self._absent

    def _buffers(self) -> dict[str, Any]:
        known = self._module.state_dict(keep_vars=True)
        return {name: known[name] for name, _ in self._module.named_buffers() if name in known}

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values as the module does, then its buffers; the same rng and torch give the same bits.

        What passes draw from now on is seeded by `rng` too.

        Parameters
        ----------
        rng : numpy.random.Generator

        Returns
        -------
        mapping of name to array, float32
            By torch's names; whole numbers beyond float32's in parts (`whole_numbers`).

        Raises
        ------
        ModelError
            What builds the module gives something else.
        """
        self._module = self._made(int(rng.integers(2**63)))
        self._seed = int(rng.integers(2**63))
        tensors = {**dict(self._module.named_parameters()), **self._buffers()}
        return {name: numbers_of(own).copy() for name, own in tensors.items()}

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Compute the mean loss over a batch, and its gradient.

        Parameters
        ----------
        views : mapping of name to array
            The parameters, float32.
        batch : Batch
        out : mapping of name to array
            Overwritten with the gradient, 0 where a parameter took no part; and with the change of each buffer.

        Returns
        -------
        float
            The mean loss over the batch.

        Raises
        ------
        ModelError
            The loss is no single number.
        """
        self._module.train()
        parameters = dict(self._module.named_parameters())
        for name, own in parameters.items():
            own.data, own.grad = self._tensor(views[name]), None
        self._fill_buffers(views)
        with self._drawing(batch.inputs):
            loss = self._loss(self._module(self._tensor(batch.inputs)), self._tensor(batch.targets))
            if loss.numel() != 1:
                raise ModelError(f"the loss has shape {tuple(loss.shape)}, must be one number: the mean over the batch")
            loss.backward()
        self._absent = [name for name, own in parameters.items() if own.grad is None]
        for name, own in parameters.items():
            gradient, own.grad = own.grad, None
            if gradient is None:
                out[name].fill(0)
            else:
                self._tensor(out[name]).copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        for name, own in self._buffers().items():
            changed = change_of(own, self._tensor(views[name]).cpu().numpy())
            self._tensor(out[name]).copy_(self._torch.from_numpy(changed))
        return float(loss.detach())

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, int | None]:
        """Evaluate a batch.

        Parameters
        ----------
        views : mapping of name to array
            The parameters, float32.
        batch : Batch

        Returns
        -------
        float
            The sum of the losses over the batch.
        int or None
            The number of samples whose largest output is that of their class; None where targets are no classes.
        """
        targets = self._tensor(batch.targets)
        with self._torch.no_grad(), self._drawing(batch.inputs):
            outputs = self._outputs(views, batch)
            total = float(self._loss(outputs, targets)) * len(batch)
            if targets.ndim != 1 or outputs.ndim != 2:
                return total, None
            return total, int((outputs.argmax(1) == targets).sum())

    def last_layer(self, views: Tensors, batch: Batch) -> Array:
        """Compute the module's outputs in evaluation mode.

        Parameters
        ----------
        views : mapping of name to array
            The parameters, float32.
        batch : Batch

        Returns
        -------
        float32, shape (m, ...)

        Raises
        ------
        ModelError
            They are no tensor.
        """
        with self._torch.no_grad(), self._drawing(batch.inputs):
            outputs = self._outputs(views, batch)
        if not isinstance(outputs, self._torch.Tensor):
            raise ModelError(f"the module gives {type(outputs).__name__}, must give one tensor for predictions")
        return self._work.xp.asarray(outputs) if self._work is not None else outputs.numpy()

    def _outputs(self, views: Tensors, batch: Batch) -> Any:
        self._module.eval()
        for name, own in self._module.named_parameters():
            own.data = self._tensor(views[name])
        self._fill_buffers(views)
        return self._module(self._tensor(batch.inputs))

    def _fill_buffers(self, views: Tensors) -> None:
        for name, own in self._buffers().items():
            set_numbers(own, self._tensor(views[name]).cpu().numpy())

    @contextmanager
    def _drawing(self, inputs: Array) -> Iterator[None]:
        """Seed torch's generators by the job's seed and a batch's inputs; afterwards they are as they were."""
        if self._work is None:
            self._work = Workspace(select_backend("cpu" if isinstance(inputs, np.ndarray) else "cuda"))
        key = int(batch_key(self._work, inputs, self._seed, 0)[0])
        devices = [] if self._work.xp is np else [self._torch.cuda.current_device()]
        with _GENERATORS, self._torch.random.fork_rng(devices=devices):
            self._torch.manual_seed(key)
            yield

    def _tensor(self, array: Array) -> Any:
        """A tensor over an array's own memory, on the host or (of a CuPy array) on the device."""
        return self._torch.as_tensor(array)


def _check(module: Any) -> None:
    """Refuse what many replicas cannot train together.

    Raises
    ------
    ModelError
        There is nothing to train; a parameter or a floating buffer is not float32; or a parameter is frozen.
    """
    parameters = dict(module.named_parameters())
    if not parameters:
        raise ModelError("the torch module has no parameters")
    for name, own in parameters.items():
        type_on_shards(name, own)
        if str(own.dtype) != "torch.float32":
            raise ModelError(f"parameter {name!r} is {own.dtype}, must be torch.float32; {_SCRIPT}")
        if not own.requires_grad:
            raise ModelError(f"parameter {name!r} is frozen (requires_grad is False); {_SCRIPT}")
    kept = module.state_dict(keep_vars=True)
    for name, own in module.named_buffers():
        if name not in kept:
            continue
        type_on_shards(name, own)
        if own.dtype.is_floating_point and str(own.dtype) != "torch.float32":
            raise ModelError(f"buffer {name!r} is {own.dtype}, must be torch.float32; {_SCRIPT}")
