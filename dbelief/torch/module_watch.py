"""What a script changes of its module and its optimiser after `Sync`: taken over where it is harmless, else refused.

Steps train the parameters that `Sync` found. Of a parameter that takes the place of another one the optimiser knows
nothing either: it would stay as it is, and the script would end well. So each step compares the objects, which takes
some 50 ns for each of them; names are sought where one differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dbelief.errors import ModelError

from .module_state import ModuleState, sum_of

_FIRST = "complete the module, then make the optimiser, then Sync"


class ModuleWatch:
    """Module and optimiser as `Sync` found them.

    Parameters
    ----------
    module
        The one behind `torch.compile`'s.
    optimizer
        None: the script makes its own steps, by optimisers that are not known here.
    state
        Of it; takes over buffers that were replaced.
    """

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, state: ModuleState) -> None:
        self._module, self._optimizer, self._state = module, optimizer, state
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._groups = _sizes(optimizer)
        self._fixed = [(name, own, own._version, sum_of(own)) for name, own in state.fixed() if not own.is_inference()]
        self._frozen = [(name, own) for name, own in state.fixed() if isinstance(own, torch.nn.Parameter)]
        self._remember()

    def _remember(self) -> None:
        self._places = list(_places(self._module))
        self._lengths = [(held, len(held)) for held in _dicts(self._module)]

    def check(self) -> None:
        """Compare; take over buffers that were replaced by others of their type and shape.

        Raises
        ------
        ModelError
            A parameter was replaced, added, removed or unfrozen, a fixed tensor was changed, or the optimiser got
            parameters; names it, and the way out.
        """
        for held, key, own in self._places:
            if held.get(key) is not own:
                self._take_over()
                break
        for held, length in self._lengths:
            if len(held) != length:
                self._take_over()
                break
        for name, own in self._frozen:
            if own.requires_grad:
                raise ModelError(
                    f"parameter {name!r} was frozen at Sync, and is not now: its gradient would be lost; let it have "
                    "requires_grad before Sync, and freeze it after: a step leaves parameters without a gradient as "
                    "they are"
                )
        for place, (name, own, version, total) in enumerate(self._fixed):
            if own._version != version:
                self._fixed[place] = name, own, own._version, self._checked_sum(name, own, total)
        if self._groups != _sizes(self._optimizer):
            raise ModelError(f"the optimiser got other parameters, or groups, after Sync: {_FIRST}")

    def _checked_sum(self, name: str, own: torch.Tensor, total: int) -> int:
        if sum_of(own) != total:
            why = "requires_grad is False" if isinstance(own, torch.nn.Parameter) else f"a buffer of {own.dtype}"
            raise ModelError(
                f"{name!r} has changed since Sync, and is kept as it was ({why}): the change would be in no other "
                "replica and not in the model file; give Sync a module without it (an average of weights, a teacher), "
                "or make it a buffer of float32 or int64, whose changes travel"
            )
        return total

    def _take_over(self) -> None:
        """See `check`: what differs."""
        now = dict(self._module.named_parameters(remove_duplicate=False))
        for name, own in now.items():
            if name not in self._parameters:
                raise ModelError(f"parameter {name!r} was added after Sync, and would not be trained: {_FIRST}")
            if own is not self._parameters[name]:
                raise ModelError(
                    f"parameter {name!r} was replaced after Sync (a new layer, or load_state_dict with assign=True), "
                    f"and would not be trained, as the optimiser has the one before: {_FIRST}"
                )
        if gone := self._parameters.keys() - now.keys():
            raise ModelError(f"parameter {min(gone)!r} was removed after Sync: {_FIRST}")
        self._state.take_over_buffers(self._module)
        known = dict(self._state.fixed())
        self._fixed = [(name, known[name], -1, total) for name, _, _, total in self._fixed]
        self._remember()


def _dicts(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    for one in module.modules():
        yield from (one._parameters, one._buffers, one._modules)


def _places(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Where each parameter, persistent buffer and submodule stands, and the object."""
    for one in module.modules():
        for held in (one._parameters, one._modules):
            yield from ((held, key, own) for key, own in held.items())
        kept = (key for key in one._buffers if key not in one._non_persistent_buffers_set)
        yield from ((one._buffers, key, one._buffers[key]) for key in kept)


def _sizes(optimizer: torch.optim.Optimizer | None) -> list[int]:
    return [] if optimizer is None else [len(group["params"]) for group in optimizer.param_groups]
