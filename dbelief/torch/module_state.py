"""The state of a torch module as a job's flat vector: trained parameters, then buffers, then what is fixed.

Trained float32 parameters on the CPU have no memory of their own: they, and their gradients, are views of flat vectors,
which pushes read and fetches write. All others are copied: half-precision parameters, of which the shards hold float32;
parameters on a device; and buffers, of which each step changes only some.

torch has no gradient (None) for a parameter that took no part in a step, and leaves it as it is. A gradient that is a
view is never None, so a hook notes where autograd adds to it: a microsecond for each parameter.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import torch

from dbelief.core.absent import Ranges, of_tensors
from dbelief.core.layout import FROZEN, Kind, Layout, RankPart
from dbelief.errors import ModelError
from dbelief.nn.torch_state import change_of, numbers_of, set_numbers, shape_on_shards, type_on_shards
from dbelief.training.initial_values import HeldTensors, InitialValues

_MOST_COUNTERS = 1 << 16
"""Numbers of a buffer of whole numbers, up to which it may count: a longer one is a table, and is not pushed."""


class ModuleState:
    """Parameters and buffers of one module.

    Parameters
    ----------
    module
        On any device; it keeps its parameter objects, so that an optimiser made before remains valid. The one behind
        `torch.compile`'s.
    sums_buffers
        Whether changes of buffers are added at the shards; else they are treated as weights.

    Attributes
    ----------
    layout
        Of all tensors.
    pushed
        Of those that are pushed: all but the fixed ones.

    Raises
    ------
    ModelError
        It has no trained parameters, or a tensor of a type that no shard holds; names it.
    """

    def __init__(self, module: torch.nn.Module, sums_buffers: bool) -> None:
        tensors, also = _tensors_of(module)
        dtypes = {name: type_on_shards(name, own) for name, own in tensors.items()}
        _check_memory(tensors)
        parameters = {name: own for name, own in tensors.items() if isinstance(own, torch.nn.Parameter)}
        trained = {name: own for name, own in parameters.items() if own.requires_grad}
        if not trained:
            raise ModelError("the module has no parameters with requires_grad: there is nothing to train")
        buffers = {name: own for name, own in tensors.items() if _changes(own)}
        fixed = {name: own for name, own in tensors.items() if name not in trained and name not in buffers}
        self._tensors = {**trained, **buffers, **fixed}
        kinds = dict.fromkeys(buffers, Kind.SUMMED if sums_buffers else Kind.TRAINED) | dict.fromkeys(fixed, Kind.FIXED)
        shapes = {name: np.empty(shape_on_shards(own), np.uint8) for name, own in self._tensors.items()}
        self.layout = Layout.of(shapes, also, kinds, dtypes)
        self.pushed = RankPart(tuple(box for box in self.layout.boxes if box.kind is not Kind.FIXED), 0)
        self._trained, self._buffers, self._fixed = trained, buffers, fixed
        self._bound: dict[str, int] = {}  # and the address of its place in the vector of values
        self._values: Mapping[str, np.ndarray] = {}
        self._gradients: deque[_Gradients] = deque()  # the first are those of the next step
        self._took_part: set[str] = set()  # names of those whose gradient, a view, was added to since the last step

    def initial(self) -> InitialValues:
        """The present values of all tensors, in float32."""
        held = {name: numbers_of(own) for name, own in self._tensors.items()}
        source = HeldTensors(self.layout, held)
        return InitialValues(self.layout, lambda: source)

    def digest(self) -> str:
        """SHA-256 of the fixed tensors, which are compared and not pushed; "" where there are none."""
        if not self._fixed:
            return ""
        digest = hashlib.sha256()
        for name, own in self._fixed.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(numbers_of(own)).tobytes())
        return FROZEN + digest.hexdigest()

    def fixed(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The fixed tensors by name."""
        return self._fixed.items()

    def trained(self) -> list[torch.nn.Parameter]:
        """The trained parameters."""
        return list(self._trained.values())

    def take_over_buffers(self, module: torch.nn.Module) -> None:
        """Take the buffers that a script has put in the place of others, as `self.seen = self.seen + 1` does.

        Raises
        ------
        ModelError
            One is gone, or has another type, shape or device than before; names it.
        """
        now, _ = _tensors_of(module)
        for held in (self._buffers, self._fixed):
            for name, before in held.items():
                own = now.get(name)
                if own is None or (own.dtype, own.shape, own.device) != (before.dtype, before.shape, before.device):
                    raise ModelError(f"buffer {name!r} was removed, or got another type, shape or device, after Sync")
                self._tensors[name] = held[name] = own

    def fixed_values(self) -> np.ndarray:
        """The fixed tensors as the end of the flat vector, float32."""
        parts = [numbers_of(own).reshape(-1) for own in self._fixed.values()]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    # -- flat vectors ------------------------------------------------------------------------------------

    def bind(self, values: np.ndarray, gradients: tuple[np.ndarray, ...] = ()) -> None:
        """Keep the module in these vectors from now on.

        Parameters
        ----------
        values
            float32, of the length of `pushed`.
        gradients
            The like, which take turns: one is cleared while another one is pushed. (): autograd makes its own.
        """
        self._values = self.pushed.views(values)
        self._gradients = deque(_Gradients(vector, self.pushed, self._trained) for vector in gradients)
        for name, own in self._trained.items():
            if own.dtype is torch.float32 and own.device.type == "cpu" and own.layout is torch.strided:
                own.data = torch.from_numpy(self._values[name])
                own.grad = None
                if self._gradients:
                    own.grad = self._gradients[0].tensors[name]
                    own.register_post_accumulate_grad_hook(partial(_note, self._took_part, name))
                self._bound[name] = own.data_ptr()

    def check_bound(self) -> None:
        """Check that parameters are still views of the vector of values.

        Raises
        ------
        ModelError
            One was moved or replaced, so that steps would be lost.
        """
        for name, address in self._bound.items():
            if self._trained[name].data_ptr() != address:
                raise ModelError(
                    f"parameter {name!r} was moved or replaced after dbelief.torch.Sync: move the module before it"
                )

    def load(self) -> None:
        """Copy what the vector of values holds to all tensors that are no views of it."""
        for name, values in self._values.items():
            if name not in self._bound:
                set_numbers(self._tensors[name], values)

    def load_fixed(self, flat: np.ndarray) -> None:
        """Set the fixed tensors from the complete flat vector."""
        views = self.layout.views(flat)
        for name, own in self._fixed.items():
            set_numbers(own, views[name])

    def kept(self) -> dict[str, torch.Tensor]:
        """Copies of all tensors that are no views of the vector of values, for `restore`."""
        return {name: self._tensors[name].detach().clone() for name in self._values if name not in self._bound}

    def restore(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Set these tensors to what they were."""
        with torch.no_grad():
            for name, own in kept.items():
                self._tensors[name].copy_(own)

    def store(self) -> None:
        """Copy all tensors that are no views to the vector of values."""
        for name, values in self._values.items():
            if name not in self._bound:
                own = self._tensors[name]
                values[...] = numbers_of(own) if own.dtype.is_floating_point else values + change_of(own, values)

    def collect_gradients(self) -> tuple[np.ndarray, Ranges]:
        """A vector of the gradients of all trained parameters, and of buffers' changes.

        A script may have set some gradients to None (`optimizer.zero_grad`), after which autograd makes new ones.

        Returns
        -------
        gradients, absent
            Ranges of the vector that belong to parameters that took no part, where it is 0.
        """
        self.check_bound()
        gradients, absent = self._gradients[0], []
        for name, own in self._trained.items():
            room, found = gradients.tensors[name], own.grad
            if found is None:
                room.zero_()
                absent.append(name)
            elif found is not room:
                room.copy_((found.to_dense() if found.is_sparse else found).detach())
            elif name not in self._took_part and gradients.untouched(name):  # a script may have written to it by itself
                absent.append(name)
        for name, buffer in self._buffers.items():
            gradients.views[name][...] = change_of(buffer, self._values[name])
        return gradients.vector, of_tensors(self.pushed, absent)

    def next_gradients(self) -> None:
        """Clear the gradients, in another vector than the one that was collected last."""
        self._gradients.rotate()
        gradients = self._gradients[0]
        gradients.clear()
        self._took_part.clear()
        for name, own in self._trained.items():
            own.grad = gradients.tensors[name] if name in self._bound else None

    def without_gradients(self) -> np.ndarray:
        """What `collect_gradients` gave, with the changes of buffers alone; before `next_gradients`."""
        gradients = self._gradients[0]
        for room in gradients.tensors.values():
            room.zero_()
        return gradients.vector

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients."""
        for own in self._trained.values():
            if own.grad is not None:
                own.grad.mul_(factor)

    def drop_gradients(self) -> None:
        """Set all gradients to None: a step leaves parameters without one as they are."""
        for own in self._trained.values():
            own.grad = None


class _Gradients:
    """A vector, all 0, and its parts by tensor."""

    def __init__(self, vector: np.ndarray, part: RankPart, trained: Iterable[str]) -> None:
        self.vector, self.views = vector, part.views(vector)
        self.tensors = {name: torch.from_numpy(self.views[name]) for name in trained}
        self.clear()

    def clear(self) -> None:
        """Set all to 0, as bytes: unlike a fill with float32, `memset` does not read what it overwrites."""
        self.vector.view(np.uint8).fill(0)

    def untouched(self, name: str) -> bool:
        """Whether a tensor is all 0 still; reads up to the first byte that is not, where `Tensor.any` reads all."""
        return not self.views[name].reshape(-1).view(np.bool_).any()


def sum_of(own: torch.Tensor) -> int:
    """CRC-32 of the numbers of a tensor."""
    return zlib.crc32(np.ascontiguousarray(numbers_of(own)).reshape(-1).view(np.uint8).data)


def _note(took_part: set[str], name: str, _: torch.Tensor) -> None:
    took_part.add(name)


def _check_memory(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse two tensors in one memory, one of which is trained: each would become a tensor of its own.

    Raises
    ------
    ModelError
        Names both.
    """
    places: dict[int, tuple[str, bool]] = {}
    for name, own in tensors.items():
        if own.numel() == 0 or own.layout is not torch.strided:
            continue
        other, trained = places.setdefault(own.data_ptr(), (name, own.requires_grad))
        if other != name and (trained or own.requires_grad):
            raise ModelError(
                f"{other!r} and {name!r} are two tensors in one memory (tied by .data): they would be trained apart; "
                "give the module one parameter under two names: layer2.weight = layer1.weight"
            )


def _tensors_of(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """Parameters and persistent buffers by their first names, and further names of tensors with several."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, own in module.state_dict(keep_vars=True).items():
        if not isinstance(own, torch.Tensor):
            raise ModelError(f"the module's state {name!r} is no tensor: a model file holds tensors only")
        names.setdefault(id(own), []).append(name)
        tensors[id(own)] = own
    first = {known[0]: tensors[key] for key, known in names.items()}
    return first, {known[0]: known[1:] for known in names.values() if len(known) > 1}


def _changes(own: torch.Tensor) -> bool:
    """Whether a tensor is a buffer that training may change: floating numbers, or counters.

    Not one with infinities, such as a mask, of which no difference can be taken.
    """
    if isinstance(own, torch.nn.Parameter):
        return False
    if own.dtype.is_floating_point:
        return bool(torch.isfinite(own).all())
    return own.dtype in (torch.int64, torch.int32) and own.numel() <= _MOST_COUNTERS
