"""Sandblaster L-BFGS of one job: iterations that ask for programs and passes, and the passes' work for replicas.

No clock, no socket. What makes it safe: a program may run twice, so it is asked for again whenever nobody knows whether
it ran; a bundle is written down before it is handed out, and added once by every segment; a pass is complete when
replicas have told of all its bundles, each of which every segment holds by then.

Source: DistBelief section 4.2, Algorithm 7.2 of its appendix.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dbelief.job import Sandblaster as Settings

from ..core.effects import Action, Note, RunProgram
from ..core.states import Compute
from .lbfgs_driver import PASSES, Iterations, Rules, Step
from .pass_scheduler import ATTEMPTS, NOTHING, Asks, Bundle, Computed, Pass


class Sandblaster:
    """The batch method of one job.

    Attributes
    ----------
    method
        Where L-BFGS stands.
    turn
        The pass under way, or the last one; None before the first.
    suspended
        A shard is away, or all are to hold a snapshot set again: nothing is asked for, handed out or taken in.
    stride
        How far the last accepted step went, in directions; NaN before the first.
    """

    def __init__(self, settings: Settings, train: int) -> None:
        self._settings = settings
        self._size = train if settings.batch == "all" else min(settings.batch, train)
        self._per_epoch = max(1, train // self._size)
        self.method = Iterations(
            Rules(
                settings.l2,
                settings.batch == "all",
                gradient_norm=settings.gradient_norm,
                relative_decrease=settings.relative_decrease,
                iterations=settings.iterations,
            ),
            settings.history,
        )
        self.turn: Pass | None = None
        self._paces: dict[int, float] = {}  # of replicas, over all passes
        self.stride = math.nan
        self._before = 0, 0  # backups launched and won in the passes before this one
        self._news: list[Action] = []
        self.suspended = False
        self._asked = False  # a program is with the shards
        self._ticket = 0  # of the last program

    @property
    def ended(self) -> str:
        """Why it has ended; "" while it goes on."""
        return self.method.ended

    @property
    def launched(self) -> int:
        """Backups in all passes; what was made again counts twice."""
        return self._before[0] + (self.turn.launched if self.turn is not None else 0)

    @property
    def won(self) -> int:
        """How many of them were done first."""
        return self._before[1] + (self.turn.won if self.turn is not None else 0)

    @property
    def gradient_norm(self) -> float:
        """Length of the gradient at the parameters; NaN before the first."""
        return math.nan if math.isnan(self.method.value) else self.method.method.gradient_norm

    # -- programs ----------------------------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        """Whether the parameters are being overwritten: who read them now would get a mixture."""
        return self._asked and self.method.step is Step.ACCEPT

    @property
    def accepting(self) -> bool:
        """Whether the parameters are to be overwritten, or may be half-way: that is finished, whatever comes."""
        return self.method.step is Step.ACCEPT

    def advance(self, read: bool) -> list[Action]:
        """What is to be noted, and the program that is due, once; the parameters are left alone while they are read."""
        wishes, self._news = self._news, []
        if self.suspended or self._asked or self.method.step in PASSES or self.method.step is Step.ENDED:
            return wishes
        if read and self.method.step is Step.ACCEPT:
            return wishes
        self._asked = True
        self._ticket += 1
        return [*wishes, RunProgram(self._ticket, tuple(self.method.program()))]

    def due(self, ticket: int) -> bool:
        """Whether this program is still waited for."""
        asked = self._asked and not self.suspended
        return asked and ticket == self._ticket and self.method.step is not Step.ENDED

    def ran(self, ticket: int, scalars: list[float]) -> list[Action]:
        """The program has run on all shards; what is to be noted."""
        method = self.method
        if not self.due(ticket):
            return []
        self._asked = False
        before, search = method.iterations, method.search
        method.answered(scalars)
        if method.step in PASSES:
            self._begin_pass()
        if method.iterations == before:
            return []
        self.stride = search.t if search is not None else 0.0
        return [
            Note(
                "iteration",
                {
                    "iteration": method.iterations,
                    "loss": method.value,
                    "gradient_norm": method.method.gradient_norm,
                    "step": self.stride,
                    "evaluations": method.evaluations,
                    "skipped": method.method.skipped,
                },
            )
        ]

    # -- bundles -----------------------------------------------------------------------------------------

    def work(
        self, number: int, incarnation: int, living: Collection[int], now_s: float, asks: Asks = NOTHING
    ) -> Compute | None:
        """A bundle for this replica; what it was given already where its call is repeated."""
        if self._idle or self.turn is None:
            return None
        if asks.turn != self.method.number:  # what it still has is of no use any more
            asks = asks._replace(holds=())
        bundle = self.turn.take(number, incarnation, living, now_s, asks)
        return None if bundle is None else self._compute(bundle)

    def _compute(self, bundle: Bundle) -> Compute:
        epoch, place = divmod(self.method.batch - 1, self._per_epoch)
        first, portion = place * self._size, self._settings.portion
        return Compute(
            self.method.number,
            bundle.number,
            0 if self._settings.batch == "all" else epoch,
            first + bundle.first * portion,
            first + min(bundle.stop * portion, self._size),
            portion,
        )

    def told(self, number: int, incarnation: int, told: Computed, now_s: float) -> bool:
        """A replica has computed a bundle, and all shards hold it; whether that is news."""
        if told.seconds > 0:  # of those who come too late most of all: they are the slow ones
            self._paces[number] = told.seconds / -(-told.samples // self._settings.portion)
        if self._idle or self.turn is None or told.turn != self.method.number:
            return False
        if not self.turn.told(incarnation, told, now_s):
            return False
        if self.turn.complete:
            self._news.append(Note("pass", self._passed(self.turn, now_s)))
            self.method.passed(self.turn.loss_sum, self.turn.samples)
        return True

    def failed_at(self, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> Compute | None:
        """A replica could not compute a bundle; what that was, None where it is no news."""
        if self._idle or self.turn is None or turn != self.method.number:
            return None
        failed = self.turn.failed_at(incarnation, bundle, reason, now_s)
        self._give_up()
        return None if failed is None else self._compute(failed)

    def _passed(self, turn: Pass, now_s: float) -> dict[str, Any]:
        return {
            "number": self.method.number,
            "iteration": self.method.iterations + 1,  # that it is a part of
            "bundles": turn.done,
            "portions": turn.portions,
            "samples": turn.samples,
            "loss": turn.loss_sum / turn.samples,
            "seconds": round(now_s - (now_s if turn.began_s is None else turn.began_s), 6),
            "launched": turn.launched,
            "won": turn.won,
            "runs": turn.picture(now_s),
        }

    def gone(self, incarnation: int, died: bool, now_s: float) -> None:
        """A life is over, by death or with a goodbye: its bundles are for others."""
        if not self._idle and self.turn is not None:
            self.turn.gone(incarnation, died, now_s)
            self._give_up()

    @property
    def _idle(self) -> bool:
        """Whether no pass is under way."""
        return self.suspended or self.method.step not in PASSES

    def _give_up(self) -> None:
        """End where a bundle has failed often enough."""
        if self.turn is not None and self.turn.failed is not None:
            bundle, reason = self.turn.failed
            work = self._compute(bundle)
            self.method.end(f"samples {work.start} to {work.stop - 1} failed {ATTEMPTS} times: {reason}", failed=True)

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "method": self.method.state(),
            "pass": self.turn.state() if self.turn is not None else None,
            "backups": [self.launched, self.won],
            "stride": self.stride if math.isfinite(self.stride) else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the last program is asked for again."""
        self.method.restore(state["method"])
        self._asked = False
        self._restore_stride(state)
        launched, won = state["backups"]
        if state["pass"] is not None:
            self.turn = self._pass()
            self.turn.restore(state["pass"])
            launched, won = launched - self.turn.launched, won - self.turn.won
        self._before = launched, won

    def suspend(self) -> None:
        """A shard is away: what comes of the last program and of the pass is of no use."""
        self.suspended, self._asked = True, False
        self._ticket += 1

    def rewind(self, state: Mapping[str, Any]) -> int:
        """All shards hold a set again, whose state this is; how many iterations that takes back."""
        back = self.method.rewind(state["method"])
        self.suspended = self._asked = False
        self._restore_stride(state)
        launched, won = state["backups"]  # more than here where the set is another run's
        self._before, self.turn = (max(launched, self.launched), max(won, self.won)), None
        if self.method.step in PASSES:
            self._begin_pass()
        return back

    def _restore_stride(self, state: Mapping[str, Any]) -> None:
        self.stride = math.nan if state["stride"] is None else float(state["stride"])

    def _begin_pass(self) -> None:
        self._before, self.turn = (self.launched, self.won), self._pass()

    def _pass(self) -> Pass:
        settings = self._settings
        portions = -(-self._size // settings.portion)
        return Pass(portions, settings.bundle, settings.backups, settings.ordered, self._paces)
