"""`cupy.RawModule`: the kernels' own source, compiled for the host and run when their stream comes to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.dbelief.nn.kernels.cuda_on_host import WRONG, launched

from .array import ndarray
from .machine import Machine

NUMBERS = {np.int32: "int", np.int64: "wide", np.float32: "float"}


class RawModule:
    """Kernels of one source and options."""

    def __init__(self, machine: Machine, *, code: str, options: tuple[str, ...] = ()) -> None:
        self._machine, self._code, self._options = machine, code, options

    def get_function(self, name: str) -> Callable[..., None]:
        """A kernel; its arguments are checked against its parameters.

        Raises
        ------
        DeviceMistake
            When called: an argument that is none of the device's arrays where a pointer is wanted, or another number.
        """
        found = re.search(rf"\b{name}\(([^)]*)\)\s*{{", self._code)
        if found is None:
            raise ValueError(f"CUDA_ERROR_NOT_FOUND: the source has no kernel {name}")
        parameters = [" ".join(one.split()[:-1]) for one in found[1].split(",")]

        def call(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
            self._launch(name, parameters, grid, block, args)

        return call

    def _launch(
        self, name: str, parameters: list[str], grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
    ) -> None:
        machine = self._machine
        if len(args) != len(parameters):
            raise machine.order.mistake(f"{name} takes {len(parameters)} arguments, not {len(args)}")
        accesses = []
        for number, (one, kind) in enumerate(zip(args, parameters, strict=True)):
            if not kind.endswith("*"):
                if NUMBERS.get(type(one)) != kind:
                    raise machine.order.mistake(f"{name}: argument {number} is {type(one).__name__}, must be {kind}")
                continue
            if not isinstance(one, ndarray):
                raise machine.order.mistake(f"{name}: argument {number} is no array of a device: {type(one).__name__}")
            if one.device.id != machine.device:
                raise machine.order.mistake(
                    f"{name}: argument {number} is of device {one.device.id}, and device {machine.device} computes"
                )
            accesses += machine.memory.access(one.numbers, not kind.startswith("const"))
        values = [one.numbers if isinstance(one, ndarray) else one for one in args]

        def run() -> None:
            wrong = launched(name, self._options, grid, block, values)
            assert wrong == 0, WRONG[wrong]

        machine.launch(name, run, accesses)
