"""What a script keeps beside the module, such as its optimisers' moments, in a file of its replica.

The state is that of the replica's steps up to an exchange: what the script does between two steps (a scheduler, an
average of the weights) belongs to the one before, so it is copied as the next step begins, when torch's hook of all
optimisers calls. It is written, on a thread of its own, once the exchange is acknowledged: a replica that starts again
has the shards' parameters, and no moments of steps that these do not have.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dbelief.checkpoint.safetensors_io import BFLOAT16
from dbelief.checkpoint.state_file import PackedState, read_state, write_state
from dbelief.errors import DataError, ModelError, SnapshotError, UserError, WriteFailed
from dbelief.process.runtime import Thread, runtime
from dbelief.script.user_code import located, one_line

log = logging.getLogger(__name__)


class KeptState:
    """State of some objects, and its file.

    Parameters
    ----------
    objects
        By name; each has `state_dict` and `load_state_dict`.
    path
        Of the file.
    run
        Id of the run that was started anew: state of another one is not put back.
    every_s
        Seconds between two copies, at least; None: one at the end alone.
    sequence
        Number of the last push so far.
    """

    def __init__(self, objects: Mapping[str, Any], path: Path, run: int, every_s: float | None, sequence: int) -> None:
        self._objects, self._path = objects, path
        self._every_s = math.inf if every_s is None else every_s
        self._about = {"run": run, "objects": {name: _description(one) for name, one in objects.items()}}
        self._sequence, self._begun, self._answered = sequence, 0, 0  # exchanges
        self._at_exchange = False  # no step has been made since the last one was begun
        self._copy: PackedState | None = None
        self._copied_of, self._copied_s = 0, -math.inf if every_s is not None else math.inf
        self._writing: Thread | None = None
        self._trouble = ""
        known = weakref.ref(self)

        def begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if (kept := known()) is not None:
                kept.step_begins()

        self._hook = register_optimizer_step_pre_hook(begins)
        weakref.finalize(self, self._hook.remove)

    # -- back from the file ------------------------------------------------------------------------------

    def restore(self, replica: int) -> None:
        """Put back what the file holds; a line of the log says what was done.

        Raises
        ------
        ModelError
            It holds the state of other objects.
        DataError
            It is damaged, and objects other than optimisers and loss scalers would begin anew.
        """
        found = self._read()
        if found is None:
            return
        about, states = found
        if about["run"] != self._about["run"]:
            log.info(f"{self._path}: is of another run, and is replaced: replica {replica} begins without its state")
            return
        if about["objects"] != self._about["objects"]:
            raise ModelError(f"{self._path}: {self._difference(about['objects'])}; {_REMOVE}")
        for name, one in self._objects.items():
            try:
                one.load_state_dict(states[name])
            except Exception as error:
                raise ModelError(
                    f"{self._path}: {name} does not take its state ({one_line(error)}); {_REMOVE}"
                ) from error
        log.info(f"{self._path}: state of replica {replica} put back: {', '.join(self._objects)}")

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        try:
            return read_state(self._path, _to_tensor)
        except FileNotFoundError:
            log.info(f"{self._path}: no state is kept yet: {', '.join(self._objects)} begin as the script made them")
            return None
        except SnapshotError as error:
            others = [name for name, one in self._objects.items() if not _may_begin_anew(one)]
            if others:
                raise DataError(f"{error}; {', '.join(others)} must not begin anew; {_REMOVE}") from error
            log.warning(f"{error}; {', '.join(self._objects)} begin without their state")
            return None

    def _difference(self, held: Mapping[str, Any]) -> str:
        """The first difference between the objects in the file and those of the script."""
        own = self._about["objects"]
        assert isinstance(own, dict)
        if list(held) != list(own):
            return f"holds {', '.join(held)}, and sync.state got {', '.join(own)}"
        name = next(name for name in own if held[name] != own[name])
        if held[name]["type"] != own[name]["type"]:
            return f"{name} is {held[name]['type']} there, and {own[name]['type']} in the script"
        return f"{name} has parameters of other groups or shapes than in the script"

    # -- into the file -----------------------------------------------------------------------------------

    def exchanged(self, sequence: int, answered: bool) -> None:
        """Note that an exchange was begun, where the number of the last push has changed, and that one was answered."""
        self._answered += answered
        if sequence != self._sequence:
            self._sequence = sequence
            self._begun += 1
            self._at_exchange = True
        self._write()

    def step_begins(self) -> None:
        """Copy the state, where it is that of an exchange and a copy is due; called as often as one likes.

        Raises
        ------
        UserError
            See `PackedState`.
        """
        if not self._at_exchange:
            return
        self._at_exchange = False
        if self._copy is None and runtime.monotonic() - self._copied_s >= self._every_s and not self._is_writing():
            with located():
                self._take()
            self._write()

    def end(self, patience_s: float) -> None:
        """Write the state of the last exchange, where the script has made no step since, and wait for what is written.

        All exchanges are answered.
        """
        self._hook.remove()
        self._wait(patience_s)
        if self._at_exchange:
            self._at_exchange = False
            self._take()
        self._write()
        self._wait(patience_s)

    def _take(self) -> None:
        self._copy = PackedState({name: one.state_dict() for name, one in self._objects.items()}, _to_array)
        self._copied_of, self._copied_s = self._begun, runtime.monotonic()

    def _write(self) -> None:
        """Begin to write the copy, if its exchange is answered."""
        if self._copy is not None and self._answered >= self._copied_of and not self._is_writing():
            copy, self._copy = self._copy, None
            self._writing = runtime.spawn(self._write_copy, "state", copy)

    def _write_copy(self, copy: PackedState) -> None:
        try:
            write_state(self._path, self._about, copy)
            self._trouble = ""
        except WriteFailed as error:
            if str(error) != self._trouble:
                log.warning(f"{error}; a replica that starts again has the state that was written last, if any")
            self._trouble = str(error)

    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _wait(self, patience_s: float) -> None:
        if self._writing is not None:
            self._writing.join(patience_s)
            if self._writing.is_alive():
                log.warning(f"{self._path}: is not written after {patience_s:g} s: the state written before is kept")


def check_kept(objects: Mapping[str, Any], module: torch.nn.Module, rule: str | None) -> None:
    """Check that objects have a state, which is the script's own.

    Parameters
    ----------
    module
        The job's.
    rule
        Name of the rule by which the shards make the script's steps; None: it makes them itself.

    Raises
    ------
    UserError
        There are none, or one has no such state; names it.
    """
    if not objects:
        raise UserError("sync.state: no object is given whose state is to be kept")
    held = {id(own) for own in module.parameters()}
    for name, one in objects.items():
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise UserError(f"sync.state: {name} is a {type(one).__name__}, without state_dict and load_state_dict")
        if isinstance(one, torch.nn.Module) and any(id(own) in held for own in one.parameters()):
            raise UserError(f"sync.state: {name} has parameters of the job's module, which the shards keep")
        if rule is not None and isinstance(one, torch.optim.Optimizer):
            raise UserError(
                f"sync.state: {name} is an optimiser, whose state the shards keep by the job's rule, {rule}"
            )
        if rule is not None and isinstance(one, torch.optim.lr_scheduler.LRScheduler):
            raise UserError(
                f"sync.state: {name} is a scheduler, which counts this replica's steps alone, and the shards step by "
                f"the job's rule, {rule}: take the rate from the job's schedule, or from job.progress.fraction"
            )


_REMOVE = "give the script its objects back, or remove the file to begin without their state"


def _description(one: Any) -> dict[str, Any]:
    """Class of an object, and of an optimiser the shapes of its parameters by group: torch does not compare them."""
    described: dict[str, Any] = {"type": type(one).__name__}
    if isinstance(one, torch.optim.Optimizer):
        described["shapes"] = [[list(own.shape) for own in group["params"]] for group in one.param_groups]
    return described


def _may_begin_anew(one: Any) -> bool:
    """Whether training without an object's state goes on as well: a schedule or an average would not."""
    return isinstance(one, torch.optim.Optimizer | torch.amp.GradScaler)


def _to_array(value: Any) -> np.ndarray | None:
    if not isinstance(value, torch.Tensor):
        return None
    host = value.detach().to("cpu", copy=True).contiguous()
    if host.dtype is torch.bfloat16:
        halves: np.ndarray = host.view(torch.int16).numpy().view(BFLOAT16)
        return halves
    try:
        array: np.ndarray = host.numpy()
    except (TypeError, RuntimeError):  # a type or a layout that NumPy does not have
        return None
    return array


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
