"""The parts of the check of a CUDA device, and how long each may take: 8 minutes together, the question which device
it is included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.device.findings import Findings

ALL_S = 480.0
"""What all parts may take."""
DESCRIPTION_S = 30.0
"""Of these: what the question may take which device it is."""
PATIENCE = 6.0
"""On the stand-in a part may take so many times as long: a processor computes, beside whatever else it does."""


@dataclass(frozen=True)
class Part:
    """One part: a process of its own.

    Attributes
    ----------
    module
        Name of the module in `parts` whose `measure(found, small)` is the part.
    bound_s
        Seconds after which its process is ended.
    about
        What it measures.
    """

    name: str
    bound_s: float
    about: str
    module: str = ""

    def measure(self, found: Findings, small: bool) -> None:
        """Run it in this process, at sizes for a device, or small ones; what it raises is its failure."""
        import_module(f"benchmarks.device.parts.{self.module or self.name}").measure(found, small)


PARTS = {
    part.name: part
    for part in (
        Part("tests", 120.0, "the tests marked gpu", "marked_tests"),
        Part("kernels", 35.0, "block-local kernels beside dense products and their roof"),
        Part("rules", 20.0, "update rules beside a copy of the device's memory"),
        Part("jobs", 105.0, "whole jobs beside the same ones on the host"),
        Part("script", 35.0, "a step of a torch script beside its optimiser's"),
        Part("copies", 20.0, "copies between host and device, and through shared memory"),
        Part("replicas", 40.0, "two replicas on one device beside one"),
        Part("ranks", 20.0, "a network cut over ranks, threads on one device, beside the whole one"),
        Part("third_stack", 40.0, "one update of the third stack of the 11.2 G network beside its roof"),
        Part("memory", 15.0, "the memory pool of the device after many steps beside after two"),
    )
}
"""All of them, by name, in the order in which they run."""


def chosen(names: Iterable[str]) -> list[Part]:
    """The parts of these names in the order of the table; all, where there are none.

    Raises
    ------
    ValueError
        A name is not one of them.
    """
    wanted = set(names)
    if unknown := wanted - set(PARTS):
        raise ValueError(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    return [part for part in PARTS.values() if not wanted or part.name in wanted]
