"""The parts of the three programs that a replay runs in its own process.

No module of dbelief imports a program: the programs are found by their entry points, as their commands are. What is
taken from them knows no wire and has no thread of its own.
"""

from __future__ import annotations

import importlib
from concurrent.futures import Executor, Future
from importlib.metadata import entry_points
from typing import Any

from dbelief.process.runtime import Runtime


def part_of(role: str, module: str) -> Any:
    """A module of the program of a role: "ps", "worker" or "coordinator"; `module`: its dotted name in the program."""
    return importlib.import_module(f"{package_of(role)}.{module}")


def package_of(role: str) -> str:
    """The package of a role's program."""
    (command,) = entry_points(group="dbelief.commands", name=role)
    return command.module.rpartition(".")[0]


class _AtOnce(Executor):
    """Executor that calls in `submit`, on the caller's thread."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call it; the future has its result, or its error."""
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class OneThread(Runtime):
    """Runtime of replicas that take turns on one thread: what they would do beside their steps is done at once."""

    @staticmethod
    def executor(workers: int, name: str) -> Executor:
        """See `Runtime.executor`."""
        return _AtOnce()
