"""Sandblaster L-BFGS of one job: iterations that request programs and passes, and the bundles of the passes.

No clock, no socket. Fault tolerance: a program is idempotent, so it is requested again whenever it is unknown whether
it ran. A bundle is persisted before it is handed out, and every segment adds it once. A pass is complete when replicas
have reported all its bundles, each of which every segment holds by then.

Source: DistBelief section 4.2, Algorithm 7.2 of its appendix.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from dbelief.core.layout import Layout
from dbelief.job import Sandblaster as Settings

from ..core.effects import Action, LogEvent, RunProgram
from ..core.messages import BundleLease, BundleResult, WorkRequest
from ..sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from ..sandblaster.orthant import unpenalised
from ..sandblaster.pass_scheduler import ATTEMPTS, Bundle, PassScheduler
from .sync_policy import SyncPolicy


class Sandblaster(SyncPolicy):
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

    section: ClassVar[str] = "batch"
    retry_s: ClassVar[float] = 0.01
    leases_are_pushed: ClassVar[bool] = False
    """Short: between two passes the shards compute for a few milliseconds."""

    def __init__(self, settings: Settings, train: int) -> None:
        self._settings = settings
        self._size = train if settings.batch == "all" else min(settings.batch, train)
        self._per_epoch = max(1, train // self._size)
        self.method = LbfgsDriver(
            StoppingRules(
                settings.l2,
                settings.l1,
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
        self._earlier_backups = 0, 0  # backups launched and won in the passes before this one
        self._events: list[Action] = []
        self.suspended = False
        self._program_pending = False  # a program was sent to the shards
        self._ticket = 0  # of the last program

    @property
    def ended(self) -> str:
        """See `SyncPolicy.ended`."""
        return self.method.ended

    @property
    def failed(self) -> str:
        """See `SyncPolicy.failed`."""
        return self.method.ended if self.method.failed else ""

    @property
    def iterations(self) -> int:
        """See `SyncPolicy.iterations`."""
        return self.method.iterations

    @property
    def backups(self) -> tuple[int, int]:
        """Backups in all passes, and those that were done first; those of a repeated pass count again."""
        (launched, won), now = self._earlier_backups, self.current_pass
        return (launched, won) if now is None else (launched + now.launched, won + now.won)

    @property
    def gradient_norm(self) -> float:
        """Length of the gradient at the parameters; NaN before the first."""
        return math.nan if math.isnan(self.method.value) else self.method.method.gradient_norm

    def set_layout(self, layout: Layout) -> None:
        """See `SyncPolicy.set_layout`: the layout shows which numbers are biases."""
        if self.method.penalty is not None:
            self.method.penalty.exempt = unpenalised(layout)

    # -- programs ----------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """See `SyncPolicy.at_rest`: a read while the parameters are being overwritten would return a mixture."""
        return not (self.suspended or (self._program_pending and self.method.phase is Phase.ACCEPT))

    def write_last(self, living: Mapping[int, int]) -> list[Action] | None:
        """See `SyncPolicy.write_last`: an accepted step, which may be partly written, is completed in any case."""
        return self.advance(living) if self.method.phase is Phase.ACCEPT else None

    def advance(self, living: Mapping[int, int], read: bool = False, reading: bool = False) -> list[Action]:
        """See `SyncPolicy.advance`: events to log, and the program that is due, once."""
        actions, self._events = self._events, []
        if self.suspended or self._program_pending or self.method.phase in PASSES or self.method.phase is Phase.ENDED:
            return actions
        if reading and self.method.phase is Phase.ACCEPT:
            return actions
        self._program_pending = True
        self._ticket += 1
        return [*actions, RunProgram(self._ticket, tuple(self.method.program()))]

    def due(self, ticket: int) -> bool:
        """Whether the result of this program is still awaited."""
        asked = self._program_pending and not self.suspended
        return asked and ticket == self._ticket and self.method.phase is not Phase.ENDED

    def program_ran(self, ticket: int, scalars: list[float]) -> list[Action]:
        """The program has run on all shards; the events to log."""
        method = self.method
        if not self.due(ticket):
            return []
        self._program_pending = False
        before, search = method.iterations, method.search
        method.record_scalars(scalars)
        if method.phase in PASSES:
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

    def held(self, request: WorkRequest) -> None:
        """See `SyncPolicy.held`: `request_lease` finds the bundles that an incarnation holds."""

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> BundleLease | None:
        """A bundle for a replica, shared with the living ones; the one that it holds where its request is repeated."""
        running = self._running
        if running is None:
            return None
        # Bundles of another pass are discarded.
        holds = request.held_bundles if request.pass_number == self.method.number else ()
        bundle = running.grant(request.replica, request.incarnation, living, now_s, holds, request.prefetch)
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

    def bundle_done(self, number: int, incarnation: int, result: BundleResult, now_s: float) -> bool:
        """Record a bundle that a replica has computed and all shards hold; whether it is new."""
        if result.seconds > 0:  # also from late duplicates, which come from the slow replicas
            self._seconds_per_portion[number] = result.seconds / -(-result.samples // self._settings.portion)
        running = self._running
        if running is None or result.pass_number != self.method.number:
            return False
        new = running.record_result(incarnation, result, now_s)
        if new and running.complete:
            self._events.append(LogEvent("pass", self._passed(running, now_s)))
            self.method.record_pass(running.loss_sum, running.samples)
        return new

    def failed_at(self, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> BundleLease | None:
        """Record that a replica could not compute a bundle; the bundle, None where it does not hold it."""
        running = self._running
        if running is None or turn != self.method.number:
            return None
        failed = running.failed_at(incarnation, bundle, reason, now_s)
        self._end_if_failed(running)
        return None if failed is None else self._compute(failed)

    def _passed(self, scheduler: PassScheduler, now_s: float) -> dict[str, Any]:
        return {
            "number": self.method.number,
            "iteration": self.method.iterations + 1,  # of which it is a part
            "bundles": scheduler.done,
            "portions": scheduler.portions,
            "samples": scheduler.samples,
            "loss": scheduler.loss_sum / scheduler.samples,
            "seconds": round(now_s - (now_s if scheduler.began_s is None else scheduler.began_s), 6),
            "launched": scheduler.launched,
            "won": scheduler.won,
            "runs": scheduler.picture(now_s),
        }

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """See `SyncPolicy.replica_lost`: its bundles go to other replicas."""
        if (running := self._running) is not None:
            running.holder_lost(incarnation, died, now_s)
            self._end_if_failed(running)

    @property
    def _running(self) -> PassScheduler | None:
        """The pass under way."""
        return None if self.suspended or self.method.phase not in PASSES else self.current_pass

    def _end_if_failed(self, running: PassScheduler) -> None:
        """End the method where a bundle has failed `ATTEMPTS` times."""
        if running.failed is not None:
            bundle, reason = running.failed
            work = self._compute(bundle)
            self.method.end(f"samples {work.start} to {work.stop - 1} failed {ATTEMPTS} times: {reason}", failed=True)

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "method": self.method.state(),
            "pass": self.current_pass.state() if self.current_pass is not None else None,
            "backups": list(self.backups),
            "stride": self.step_length if math.isfinite(self.step_length) else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the last program is requested again."""
        self.method.restore(state["method"])
        self._program_pending = False
        self._restore_step_length(state)
        launched, won = state["backups"]
        if state["pass"] is not None:
            self.current_pass = self._pass()
            self.current_pass.restore(state["pass"])
            launched, won = launched - self.current_pass.launched, won - self.current_pass.won
        self._earlier_backups = launched, won

    def suspend(self) -> bool:
        """See `SyncPolicy.suspend`: the results of the last program and of the pass are discarded."""
        self.suspended, self._program_pending = True, False
        self._ticket += 1
        return True

    def rewind(self, state: Mapping[str, Any]) -> int:
        """Restore the state of the set that all shards have loaded; the number of iterations rolled back."""
        back = self.method.rewind(state["method"])
        self.suspended = self._program_pending = False
        self._restore_step_length(state)
        launched, won = map(max, state["backups"], self.backups)  # more than here where the set is another run's
        self._earlier_backups, self.current_pass = (launched, won), None
        if self.method.phase in PASSES:
            self._begin_pass()
        return back

    def _restore_step_length(self, state: Mapping[str, Any]) -> None:
        self.step_length = math.nan if state["stride"] is None else float(state["stride"])

    def _begin_pass(self) -> None:
        self._earlier_backups, self.current_pass = self.backups, self._pass()

    def _pass(self) -> PassScheduler:
        settings = self._settings
        portions = -(-self._size // settings.portion)
        return PassScheduler(portions, settings.bundle, settings.backups, settings.ordered, self._seconds_per_portion)
