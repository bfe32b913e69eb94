"""L-BFGS as a state machine over passes: the next program for the shards, or the next pass.

    START --trial = w--> GRADIENT pass --gradient, products--> DIRECTION --direction, trial--> TRIAL pass
    TRIAL pass --gradient, slope--> accepted? no: another TRIAL pass
                                    yes: ACCEPT --w = trial, new pair--> DIRECTION, or with other samples START

With an L1 penalty the same phases make the steps of OWL-QN (`orthant.py`), by another search (`backtracking.py`).

A pass leaves the sum of all samples' gradients at `trial` in `accrued`. Beside the passes and the trials of a search
an iteration is two programs: the pair with its products, and the direction with the first trial. All trials of an
iteration, and both gradients of a pair, use the same samples. The state is a few numbers; no clock, no socket.

Source: DistBelief Algorithm 7.2 (appendix), with a search in the place that it names; Schraudolph 2007 for pairs of
the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dbelief.core.push import ACCRUED, PARAMETERS, TRIAL
from dbelief.core.vector_program import Operation, copy, dots, lincomb

from .backtracking import Backtracking
from .lbfgs import DIRECTION, GRADIENT, PREVIOUS, Lbfgs
from .line_search import LinePoint, LineSearch
from .orthant import PSEUDO, OrthantPenalty


class Phase(Enum):
    """The next program or pass."""

    START = "start"  # a program: begin at the parameters, on a batch
    FIRST_PASS = "first pass"
    GRADIENT = "gradient"  # a program: the gradient at the parameters
    DIRECTION = "direction"  # a program: the direction, and the first trial
    TRIAL_PASS = "trial pass"
    SLOPE = "slope"  # a program: the gradient at the trial
    MOVE = "move"  # a program: another trial
    ACCEPT = "accept"  # a program: the trial becomes the parameters
    RESTART = "restart"  # a program: the search failed; steepest descent from the parameters
    ENDED = "ended"


PASSES = Phase.FIRST_PASS, Phase.TRIAL_PASS


@dataclass(frozen=True)
class StoppingRules:
    """Settings and stopping rules; None: no such limit.

    Attributes
    ----------
    l2
        lambda: the loss has lambda / 2 |w|^2 on top of the samples' mean.
    l1
        The loss has l1 |w|_1 on top, but for biases.
    same_batch
        Whether every iteration uses the same samples.
    gradient_norm
        Ends where the gradient's norm is at most this.
    relative_decrease
        Ends where an iteration decreases the loss by at most this share of it; with one batch only.
    """

    l2: float = 0.0
    l1: float = 0.0
    same_batch: bool = True
    gradient_norm: float | None = None
    relative_decrease: float | None = None
    iterations: int | None = None


class LbfgsDriver:
    """The method between two events.

    Attributes
    ----------
    step
        The next phase.
    batch, number
        Counts of the batches and of the passes that were begun, from 1.
    iterations, evaluations
        Done; an evaluation is a pass.
    value
        The loss at the parameters, on the current batch; NaN before the first.
    ended
        Why it has ended; "" before. `failed`: whether because of a failure.
    penalty
        None where l1 is 0.
    """

    def __init__(self, rules: StoppingRules, history: int = 10) -> None:
        self.rules = rules
        self.penalty = OrthantPenalty(rules.l1) if rules.l1 else None
        self.method = Lbfgs(history, descends=PSEUDO if rules.l1 else GRADIENT)
        self.phase = Phase.START
        self.batch = self.number = self.iterations = self.evaluations = 0
        self.value = math.nan
        self.ended, self.failed = "", False
        self._next = Phase.START  # the phase to continue with, had it not ended
        self.search: LineSearch | Backtracking | None = None
        self._last_pass = 0.0, 1  # sum of losses and samples of the last pass
        self._slope = 0.0
        self._before = math.nan

    # -- what is to be done ------------------------------------------------------------------------------

    def program(self) -> list[Operation]:
        """The program that the shards are to run now; its scalars go to `record_scalars`.

        Raises
        ------
        ValueError
            The current phase has no program.
        """
        if self.phase in PASSES or self.phase is Phase.ENDED:
            raise ValueError(f"no program is due at {self.phase.value!r}")
        if self.phase is Phase.START:
            return [copy(TRIAL, PARAMETERS)]
        if self.phase is Phase.GRADIENT:
            return [*self._objective(), *self._pseudo_gradient(), *self.method.inner_products(None)]
        if self.phase is Phase.DIRECTION:
            program, self._slope = self.method.direction()
            aligned = [self.penalty.align()] if self.penalty is not None else []
            return [*program, *aligned, *self._trial(self._first_step())]
        if self.phase is Phase.SLOPE:
            if self.penalty is not None:
                return [*self._objective(), *self.penalty.step_taken(self.method.new_step)]
            return [*self._objective(), dots((GRADIENT, DIRECTION))]
        if self.phase is Phase.RESTART:
            return [copy(GRADIENT, PREVIOUS), *self.method.inner_products(None)]
        assert self.search is not None
        if self.phase is Phase.MOVE:
            return self._trial(self.search.t)
        if self.penalty is not None:
            return [copy(PARAMETERS, TRIAL), *self._pseudo_gradient(), *self.method.products_with_new_pair()]
        return [copy(PARAMETERS, TRIAL), *self.method.inner_products(self.search.t)]

    def _objective(self) -> list[Operation]:
        """The gradient of the loss at the trial, from the sum that the pass has left; and the trial's norms."""
        _, samples = self._last_pass
        norms = [dots((TRIAL, TRIAL)), *([self.penalty.norm()] if self.penalty is not None else [])]
        return [lincomb(GRADIENT, (1 / samples, ACCRUED), (self.rules.l2, TRIAL)), *norms]

    def _pseudo_gradient(self) -> list[Operation]:
        return [self.penalty.pseudo_gradient()] if self.penalty is not None else []

    def _trial(self, t: float) -> list[Operation]:
        there = lincomb(TRIAL, (1.0, PARAMETERS), (t, DIRECTION))
        return [there, self.penalty.project()] if self.penalty is not None else [there]

    def _first_step(self) -> float:
        """First step of a search: 1 where pairs scale the direction; else at most 1, and no further than length 1."""
        return 1.0 if self.method.pairs else min(1.0, 1.0 / self.method.gradient_norm)

    # -- what came of it ---------------------------------------------------------------------------------

    def record_pass(self, loss_sum: float, samples: int) -> None:
        """Record a complete pass at the trial: the sum of its samples' losses, and their number."""
        self._last_pass = loss_sum, samples
        self.evaluations += 1
        self.phase = Phase.GRADIENT if self.phase is Phase.FIRST_PASS else Phase.SLOPE

    def record_scalars(self, scalars: Sequence[float]) -> None:
        """Record the scalars of the program that has run."""
        if self.phase is Phase.START:
            self._begin_pass(Phase.FIRST_PASS)
            self.batch += 1
        elif self.phase is Phase.GRADIENT:
            self.value, products = self._loss(scalars)
            self._absorb(products)
        elif self.phase is Phase.DIRECTION:
            self._begin_search()
        elif self.phase is Phase.SLOPE:
            self._evaluate_trial(scalars)
        elif self.phase is Phase.MOVE:
            self._begin_pass(Phase.TRIAL_PASS)
        elif self.phase is Phase.ACCEPT:
            self._accepted(scalars)
        else:
            self._absorb(scalars)

    def _begin_pass(self, phase: Phase) -> None:
        self.phase = phase
        self.number += 1

    def _loss(self, scalars: Sequence[float]) -> tuple[float, Sequence[float]]:
        """The loss at the trial, by the norms that `_objective` gives first; and the scalars after them."""
        loss_sum, samples = self._last_pass
        value = loss_sum / samples + self.rules.l2 / 2 * scalars[0]
        return (value, scalars[1:]) if self.penalty is None else (value + self.penalty.l1 * scalars[1], scalars[2:])

    def _absorb(self, scalars: Sequence[float]) -> None:
        """Take in the products with the gradient at the parameters, and continue unless they are not finite."""
        if not math.isfinite(self.value):
            self.end(f"the loss is {self.value} after {self.iterations} iterations", failed=True)
            return
        try:
            self.method.absorb(scalars)
        except FloatingPointError:
            self.end(f"the gradient is not finite after {self.iterations} iterations", failed=True)
            return
        self.phase = self._next = Phase.DIRECTION
        if reason := self._limit():
            self.end(reason)

    def _limit(self) -> str:
        """The limit that is reached, in words; "" where none is."""
        rules, norm = self.rules, self.method.gradient_norm
        if norm <= (rules.gradient_norm or 0.0):
            return f"the gradient's norm is {norm:.3g}"
        if rules.iterations is not None and self.iterations >= rules.iterations:
            return f"{self.iterations} iterations done"
        change, bound = self._before - self.value, rules.relative_decrease
        if rules.same_batch and bound is not None and change <= bound * max(abs(self.value), abs(self._before)):
            return f"an iteration brought the loss down by {change:.3g}, to {self.value:.6g}"
        return ""

    def _begin_search(self) -> None:
        if not self._slope < 0:  # rounding has corrupted the history
            self._restart(f"the slope is {self._slope:.3g}")
            return
        if self.penalty is not None:
            self.search = Backtracking(self.value, self._first_step(), 0.5 if self.method.pairs else 0.1)
        else:
            self.search = LineSearch(LinePoint(0.0, self.value, self._slope), self._first_step())
        self._begin_pass(Phase.TRIAL_PASS)

    def _evaluate_trial(self, scalars: Sequence[float]) -> None:
        assert self.search is not None
        value, (slope,) = self._loss(scalars)
        self.search.update(value, slope)
        if self.search.accepted:
            self.phase = Phase.ACCEPT
            self._before, self.value = self.value, value
        elif self.search.ended:
            self._restart(self.search.ended)
        else:
            self.phase = Phase.MOVE

    def _restart(self, reason: str) -> None:
        """The direction gave no better point: drop the pairs and restart, or end where there are none."""
        self.search = None
        if not self.method.pairs:
            self.end(f"no better point is found: {reason}")
            self._next = Phase.ENDED
            return
        self.method.forget()
        self.phase = Phase.RESTART

    def _accepted(self, scalars: Sequence[float]) -> None:
        self.iterations += 1
        self._absorb(scalars)
        if not self.rules.same_batch:
            self._next = Phase.START
            self.phase = Phase.START if self.phase is Phase.DIRECTION else self.phase

    def end(self, reason: str, failed: bool = False) -> None:
        """End the method; the parameters are those of the last accepted step."""
        self.phase, self.ended, self.failed = Phase.ENDED, reason, failed
        self.search = None

    # -- another coordinator, and back to a snapshot set -------------------------------------------------

    def rewind(self, state: Mapping[str, Any]) -> int:
        """Restore the state of a set, and give repeated passes new numbers; the number of iterations rolled back.

        A set is written between two programs, so it holds every vector as the last one left it. Only the sum of a pass
        may be incomplete, so a phase that uses such a sum repeats its pass.
        """
        number, iterations = self.number, self.iterations
        if state.get("l1", 0.0) != self.rules.l1:  # a resumed job's file was changed: begin again at the parameters
            state = {**state, **_at_start()}
        self.restore(state)
        self.number = max(number, self.number)
        again = {Phase.GRADIENT: Phase.FIRST_PASS, Phase.SLOPE: Phase.TRIAL_PASS}
        phase = again.get(self.phase, self.phase)
        self.evaluations -= phase is not self.phase
        self.phase = phase
        if self.phase is Phase.ENDED and not self.failed and self._next is not Phase.ENDED and not self._limit():
            self.phase, self.ended = self._next, ""  # the limits have changed
        if phase in PASSES:
            self.number += 1
        return iterations - self.iterations

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "step": self.phase.value,
            "l1": self.rules.l1,
            "counts": [self.batch, self.number, self.iterations, self.evaluations],
            "value": self.value if math.isfinite(self.value) else None,
            "before": self._before if math.isfinite(self._before) else None,
            "told": list(self._last_pass),
            "slope": self._slope,
            "method": self.method.state(),
            "search": self.search.state() if self.search is not None else None,
            "ended": [self.ended, self.failed],
            "next": self._next.value,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.phase = Phase(state["step"])
        self.batch, self.number, self.iterations, self.evaluations = map(int, state["counts"])
        self.value = math.nan if state["value"] is None else float(state["value"])
        self._before = math.nan if state["before"] is None else float(state["before"])
        self._last_pass = float(state["told"][0]), int(state["told"][1])
        self._slope = float(state["slope"])
        self.method.restore(state["method"])
        search = LineSearch if self.penalty is None else Backtracking
        self.search = search(**state["search"]) if state["search"] is not None else None
        self.ended, self.failed = state["ended"]
        self._next = Phase(state["next"])


def _at_start() -> dict[str, Any]:
    """The state between two events, but for what is counted, at the parameters and without pairs."""
    start = Phase.START.value
    unknown = {"value": None, "before": None, "search": None, "ended": ["", False]}
    return {"step": start, "next": start, "method": Lbfgs().state(), **unknown}
