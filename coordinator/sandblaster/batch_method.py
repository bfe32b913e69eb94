"""Sandblaster L-BFGS of one job: iterations that request programs and passes, and the bundles of the passes.

No clock, no socket. Fault tolerance: a program is idempotent, so it is requested again whenever it is unknown whether
it ran. A bundle is persisted before it is handed out, and every segment adds it once. A pass is complete when replicas
have reported all its bundles, each of which every segment holds by then.

Source: DistBelief section 4.2, Algorithm 7.2 of its appendix.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dbelief.job import Sandblaster as Settings

from ..core.effects import Action, LogEvent, RunProgram
from ..core.states import BundleLease
from .lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from .pass_scheduler import ATTEMPTS, NO_REQUEST, Bundle, BundleResult, PassScheduler, WorkRequest


class Sandblaster:
    """The batch method of one job.

    Attributes
    ----------
    method
        The state of L-BFGS.
    current_pass
        The pass under way, or the last one; None before the first.
    suspended
        A shard is unavailable, or all are to load a snapshot set again: nothing is requested, handed out or recorded.
    step_length
        Length of the last accepted step, in multiples of the direction; NaN before the first.
    """

    def __init__(self, settings: Settings, train: int) -> None:
        self._settings = settings
        self._size = train if settings.batch == "all" else min(settings.batch, train)
        self._per_epoch = max(1, train // self._size)
        self.method = LbfgsDriver(
            StoppingRules(
                settings.l2,
                settings.batch == "all",
                gradient_norm=settings.gradient_norm,
                relative_decrease=settings.relative_decrease,
                iterations=settings.iterations,
            ),
            settings.history,
        )
        self.current_pass: PassScheduler | None = None
        self._seconds_per_portion: dict[int, float] = {}  # of replicas, over all passes
        self.step_length = math.nan
        self._before = 0, 0  # backups launched and won in the passes before this one
        self._news: list[Action] = []
        self.suspended = False
        self._asked = False  # a program was sent to the shards
        self._ticket = 0  # of the last program

    @property
    def ended(self) -> str:
        """Why it has ended; "" while it runs."""
        return self.method.ended

    @property
    def launched(self) -> int:
        """Backups in all passes; those of a repeated pass count again."""
        return self._before[0] + (self.current_pass.launched if self.current_pass is not None else 0)

    @property
    def won(self) -> int:
        """Backups that were done first."""
        return self._before[1] + (self.current_pass.won if self.current_pass is not None else 0)

    @property
    def gradient_norm(self) -> float:
        """Length of the gradient at the parameters; NaN before the first."""
        return math.nan if math.isnan(self.method.value) else self.method.method.gradient_norm

    # -- programs ----------------------------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        """Whether the parameters are being overwritten: a read now would return a mixture."""
        return self._asked and self.method.step is Phase.ACCEPT

    @property
    def accepting(self) -> bool:
        """Whether the parameters are to be overwritten, or may be partly overwritten: that is completed in any case."""
        return self.method.step is Phase.ACCEPT

    def advance(self, read: bool) -> list[Action]:
        """Events to log, and the program that is due, once; with `read`, parameters in use are not overwritten."""
        wishes, self._news = self._news, []
        if self.suspended or self._asked or self.method.step in PASSES or self.method.step is Phase.ENDED:
            return wishes
        if read and self.method.step is Phase.ACCEPT:
            return wishes
        self._asked = True
        self._ticket += 1
        return [*wishes, RunProgram(self._ticket, tuple(self.method.program()))]

    def due(self, ticket: int) -> bool:
        """Whether the result of this program is still awaited."""
        asked = self._asked and not self.suspended
        return asked and ticket == self._ticket and self.method.step is not Phase.ENDED

    def ran(self, ticket: int, scalars: list[float]) -> list[Action]:
        """The program has run on all shards; the events to log."""
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
        self.step_length = search.t if search is not None else 0.0
        return [
            LogEvent(
                "iteration",
                {
                    "iteration": method.iterations,
                    "loss": method.value,
                    "gradient_norm": method.method.gradient_norm,
                    "step": self.step_length,
                    "evaluations": method.evaluations,
                    "skipped": method.method.skipped,
                },
            )
        ]

    # -- bundles -----------------------------------------------------------------------------------------

    def work(
        self, number: int, incarnation: int, living: Collection[int], now_s: float, asks: WorkRequest = NO_REQUEST
    ) -> BundleLease | None:
        """A bundle for this replica; the one that it already holds where its request is repeated."""
        if self._idle or self.current_pass is None:
            return None
        if asks.turn != self.method.number:  # bundles of another pass are discarded
            asks = asks._replace(holds=())
        bundle = self.current_pass.take(number, incarnation, living, now_s, asks)
        return None if bundle is None else self._compute(bundle)

    def _compute(self, bundle: Bundle) -> BundleLease:
        epoch, place = divmod(self.method.batch - 1, self._per_epoch)
        first, portion = place * self._size, self._settings.portion
        return BundleLease(
            self.method.number,
            bundle.number,
            0 if self._settings.batch == "all" else epoch,
            first + bundle.first * portion,
            first + min(bundle.stop * portion, self._size),
            portion,
        )

    def bundle_done(self, number: int, incarnation: int, told: BundleResult, now_s: float) -> bool:
        """Record a bundle that a replica has computed and all shards hold; whether it is new."""
        if told.seconds > 0:  # also from late duplicates, which come from the slow replicas
            self._seconds_per_portion[number] = told.seconds / -(-told.samples // self._settings.portion)
        if self._idle or self.current_pass is None or told.turn != self.method.number:
            return False
        if not self.current_pass.record_result(incarnation, told, now_s):
            return False
        if self.current_pass.complete:
            self._news.append(LogEvent("pass", self._passed(self.current_pass, now_s)))
            self.method.passed(self.current_pass.loss_sum, self.current_pass.samples)
        return True

    def failed_at(self, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> BundleLease | None:
        """Record that a replica could not compute a bundle; the bundle, None where it does not hold it."""
        if self._idle or self.current_pass is None or turn != self.method.number:
            return None
        failed = self.current_pass.failed_at(incarnation, bundle, reason, now_s)
        self._give_up()
        return None if failed is None else self._compute(failed)

    def _passed(self, turn: PassScheduler, now_s: float) -> dict[str, Any]:
        return {
            "number": self.method.number,
            "iteration": self.method.iterations + 1,  # of which it is a part
            "bundles": turn.done,
            "portions": turn.portions,
            "samples": turn.samples,
            "loss": turn.loss_sum / turn.samples,
            "seconds": round(now_s - (now_s if turn.began_s is None else turn.began_s), 6),
            "launched": turn.launched,
            "won": turn.won,
            "runs": turn.picture(now_s),
        }

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """An incarnation has failed or left: its bundles go to other replicas."""
        if not self._idle and self.current_pass is not None:
            self.current_pass.holder_lost(incarnation, died, now_s)
            self._give_up()

    @property
    def _idle(self) -> bool:
        """Whether no pass is under way."""
        return self.suspended or self.method.step not in PASSES

    def _give_up(self) -> None:
        """End the method where a bundle has failed `ATTEMPTS` times."""
        if self.current_pass is not None and self.current_pass.failed is not None:
            bundle, reason = self.current_pass.failed
            work = self._compute(bundle)
            self.method.end(f"samples {work.start} to {work.stop - 1} failed {ATTEMPTS} times: {reason}", failed=True)

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "method": self.method.state(),
            "pass": self.current_pass.state() if self.current_pass is not None else None,
            "backups": [self.launched, self.won],
            "stride": self.step_length if math.isfinite(self.step_length) else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the last program is requested again."""
        self.method.restore(state["method"])
        self._asked = False
        self._restore_stride(state)
        launched, won = state["backups"]
        if state["pass"] is not None:
            self.current_pass = self._pass()
            self.current_pass.restore(state["pass"])
            launched, won = launched - self.current_pass.launched, won - self.current_pass.won
        self._before = launched, won

    def suspend(self) -> None:
        """A shard is unavailable: discard the results of the last program and of the pass."""
        self.suspended, self._asked = True, False
        self._ticket += 1

    def rewind(self, state: Mapping[str, Any]) -> int:
        """Restore the state of the set that all shards have loaded; the number of iterations rolled back."""
        back = self.method.rewind(state["method"])
        self.suspended = self._asked = False
        self._restore_stride(state)
        launched, won = state["backups"]  # more than here where the set is another run's
        self._before, self.current_pass = (max(launched, self.launched), max(won, self.won)), None
        if self.method.step in PASSES:
            self._begin_pass()
        return back

    def _restore_stride(self, state: Mapping[str, Any]) -> None:
        self.step_length = math.nan if state["stride"] is None else float(state["stride"])

    def _begin_pass(self) -> None:
        self._before, self.current_pass = (self.launched, self.won), self._pass()

    def _pass(self) -> PassScheduler:
        settings = self._settings
        portions = -(-self._size // settings.portion)
        return PassScheduler(portions, settings.bundle, settings.backups, settings.ordered, self._seconds_per_portion)
