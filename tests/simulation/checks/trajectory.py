"""The run of L-BFGS that every job has to follow: computed without a cluster, and compared program by program.

`basin` makes all sums exact, so neither the order of bundles nor the number of shards nor a failure may change a bit. A
bundle that is missing, added twice or computed elsewhere shows in the next program's products.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from coordinator.sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import ACCRUED, PARAMETERS, TRIAL
from dbelief.core.vector_program import together
from dbelief.optim import make_rule
from ps_server.programs import run
from ps_server.store.segment import Segment
from tests.simulation.models.basin import basin, sums
from tests.simulation.models.marks import LENGTH, ROWS, SAMPLES

from .copies import Copies


@dataclass
class Trajectory:
    """One run.

    Attributes
    ----------
    losses
        Sum of the losses in each pass.
    scalars
        Products that a program has given, by its phase and the passes before it.
    contents
        Checksums of the trial and of the parameters in every segment after each program, by the same.
    parameters
        At the end, (`ROWS`, `LENGTH`) float32.
    """

    losses: list[float] = field(default_factory=list)
    scalars: dict[tuple[Phase, int], list[float]] = field(default_factory=dict)
    contents: dict[tuple[Phase, int], list[int]] = field(default_factory=dict)
    parameters: np.ndarray = field(default_factory=lambda: np.zeros((ROWS, LENGTH), np.float32))


@lru_cache
def trajectory(rules: StoppingRules, history: int) -> Trajectory:
    """The run without a failure, by the shards' own programs on segments of this process."""
    found, driver, numbers = Trajectory(), LbfgsDriver(rules, history), np.arange(SAMPLES, dtype=np.float64)
    segments = [_segment(row, values) for row, values in enumerate(basin.parameters(np.random.default_rng())["marks"])]
    while driver.phase is not Phase.ENDED:
        if driver.phase in PASSES:
            loss, gradient = sums(np.array([segment.vectors[TRIAL] for segment in segments]), numbers)
            for segment, row in zip(segments, gradient, strict=True):
                segment.vectors[ACCRUED] = row
            found.losses.append(loss)
            driver.record_pass(loss, SAMPLES)
        else:
            program, key = driver.program(), (driver.phase, driver.evaluations)
            found.scalars[key] = together(program, [run(program, segment) for segment in segments])
            found.contents[key] = _contents(segments[0])
            driver.record_scalars(found.scalars[key])
    found.parameters[:] = [segment.vectors[PARAMETERS] for segment in segments]
    return found


def _contents(segment: Segment) -> list[int]:
    return [zlib.crc32(segment.vectors[name].data) for name in (TRIAL, PARAMETERS)]


def _segment(row: int, values: np.ndarray) -> Segment:
    segment = Segment(SegmentSpan(row, row * LENGTH, LENGTH), make_rule("sgd", {}))
    segment.vectors[PARAMETERS] = values.copy()
    return segment


class TrajectoryWatch:
    """Compares what coordinators record, and what copies of the segments hold then, with the trajectory.

    Parameters
    ----------
    leads
        Whether the running process is the coordinator that leads.
    violation
        Called with a text for each difference.
    """

    def __init__(self, copies: Copies, leads: Callable[[], bool], violation: Callable[[str], None]) -> None:
        self._copies, self._leads, self._violation = copies, leads, violation
        self._followed: Trajectory | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all coordinators' drivers."""
        record_pass, record_scalars = LbfgsDriver.record_pass, LbfgsDriver.record_scalars

        def passed(driver: LbfgsDriver, loss_sum: float, samples: int) -> None:
            self._passed(driver, loss_sum, samples)
            record_pass(driver, loss_sum, samples)

        def ran(driver: LbfgsDriver, scalars: Sequence[float]) -> None:
            self._ran(driver, list(scalars))
            record_scalars(driver, scalars)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(LbfgsDriver, "record_pass", passed))
            stack.enter_context(mock.patch.object(LbfgsDriver, "record_scalars", ran))
            yield

    def _of(self, driver: LbfgsDriver) -> Trajectory:
        if self._followed is None:
            # With the wrappers in place, the run computed here would be watched too; it is computed once a process.
            with mock.patch.object(self, "_passed", _nothing), mock.patch.object(self, "_ran", _nothing):
                self._followed = trajectory(driver.rules, driver.method.history)
        return self._followed

    def _passed(self, driver: LbfgsDriver, loss_sum: float, samples: int) -> None:
        number, losses = driver.evaluations, self._of(driver).losses
        if samples != SAMPLES:
            self._violation(f"pass {number + 1} has {samples} samples of {SAMPLES}")
        elif number >= len(losses):
            self._violation(f"there is a pass {number + 1}, and without failures there are {len(losses)}")
        elif loss_sum != losses[number]:
            self._violation(f"the loss of pass {number + 1} is {loss_sum!r}, without failures {losses[number]!r}")

    def _ran(self, driver: LbfgsDriver, scalars: list[float]) -> None:
        wanted = self._of(driver).scalars.get((driver.phase, driver.evaluations))
        if scalars != wanted:
            self._violation(
                f"program {driver.phase.value!r} after pass {driver.evaluations} gives {scalars}, without failures "
                f"{wanted}"
            )
        elif self._leads():
            self._check_copies(driver)

    def _check_copies(self, driver: LbfgsDriver) -> None:
        """A program that has run has run on every copy that may lead."""
        for whose, index, segment in self._copies.segments():
            if segment is None or {TRIAL, PARAMETERS} - segment.vectors.keys():
                self._violation(f"{whose} does not have segment {index}")
            elif _contents(segment) != self._of(driver).contents[driver.phase, driver.evaluations]:
                self._violation(
                    f"{whose} has not run the program {driver.phase.value!r} in segment {index} after pass "
                    f"{driver.evaluations}"
                )

    def check_end(self, folder: Path) -> None:
        """The model that was written is the end of the trajectory."""
        if self._followed is not None and (folder / "model.safetensors").is_file():
            found = load_file(folder / "model.safetensors")["marks"]
            if not np.array_equal(found, self._followed.parameters):
                self._violation("the result differs from that of a run without failures")


def _nothing(*_: object) -> None:
    pass
