"""Synchronisation of a script's module with the job, step by step, and its evaluations."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dbelief.core.push import PARAMETERS, PushResult
from dbelief.core.sample_form import SampleForm
from dbelief.errors import ModelError, Rejected, UserError
from dbelief.job import Diloco
from dbelief.job.metrics import name_of
from dbelief.rpc.client.coordinator_client import MembershipClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.script.drawn import DrawnBatch, Stepped
from dbelief.script.job import ScriptJob
from dbelief.script.membership import Membership
from dbelief.script.state_place import state_file
from dbelief.script.user_code import exit_code_of, line_of, located
from dbelief.training.keep_alive import keep_alive
from dbelief.training.session import OwnModel, Session

from .account import StepAccount
from .embedding import digest_with, embeddings_of
from .kept_state import KeptState, check_kept
from .local_steps import ElasticStep, Exchange, LocalStep, exchange_of
from .loss import checked_loss
from .module_state import ModuleState
from .module_watch import ModuleWatch
from .optimizer_rule import OTHERS, check_rule
from .rule_step import RuleStep
from .scores import Score, Scored, checked_score
from .step import Step


class Sync:
    """A module, kept in step with the job. For one thread.

    With a rule of the shards `step` makes the optimiser's step. With `rule: {name: add}`, elastic averaging and DiLoCo
    the script makes its own steps, by as many optimisers as it has; `step` marks one, and exchanges what has changed.

    Parameters
    ----------
    job : ScriptJob
        Made by `dbelief.join()`; this script joins it here.
    module : torch.nn.Module
        On any device. Its trained float32 parameters on the CPU become views of one vector: their objects stay.
    optimizer : torch.optim.Optimizer, optional
        Of all parameters of the module that have `requires_grad`. None: the script makes its own steps.
    about : mapping, optional
        What a user of the trained model needs to know of its samples, by name: a vocabulary, names of classes, a scale.
        JSON must be able to hold it, in at most 2^20 characters. It is kept in the model file; see `read_about`.

    Raises
    ------
    ModelError
        The module cannot be trained by the job, or is another one than the other scripts have; or the job's rule is not
        the optimiser's.
    RuntimeFailure
        The job is over, or its coordinator or shards do not answer.

    Notes
    -----
    Memory: two to four more copies of the parameters, most where exchanges travel. It sets torch's number of threads to
    the job's `threads`.
    """

    def __init__(
        self,
        job: ScriptJob,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._job = member = job.membership
        self._module = module
        with located():
            if not isinstance(module, torch.nn.Module):
                raise ModelError(f"Sync: a torch module is wanted, not a {type(module).__name__}")
            own_steps = exchange_of(member.job)
            if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
                raise ModelError(f"Sync: a torch optimiser is wanted, not a {type(optimizer).__name__}")
            if own_steps is None:
                _check_optimizer(optimizer, member)
            root = getattr(module, "_orig_mod", module)  # the module behind torch.compile's
            self._embeddings = embeddings_of(root, member.job.tables)
            self._state = ModuleState(root, sums_buffers=own_steps is not ElasticStep)
            if optimizer is not None:
                _check_parameters(module, optimizer)
            self._session = self._opened(member, _form(about))
        torch.set_num_threads(member.settings.threads or member.job.threads)
        self._seed = member.job.seed
        self._fetch_fixed()
        member.reports.phases.end("fetch")
        self._step = self._way(own_steps, optimizer)
        self._watch = ModuleWatch(root, optimizer, self._state)
        self._account = StepAccount(member.reports, self._session.sequences.get(PARAMETERS, 0))
        self._fetch(0)
        member.before_compute, member.while_waiting = self._before_compute, self._acknowledge
        member.settle, member.at_end = self._settle, self._at_end
        self._seeded: DrawnBatch | None = None  # the batch that torch's generators are seeded for
        self._result: Scored | None = None
        self._kept: KeptState | None = None

    def _way(self, own_steps: Exchange | None, optimizer: torch.optim.Optimizer | None) -> Step:
        if own_steps is not None:
            return own_steps(self._session, self._state)
        assert optimizer is not None, "checked"
        return RuleStep(self._session, self._state, optimizer, self._embeddings)

    def _opened(self, member: Membership, form: SampleForm | None) -> Session:
        digest = digest_with(self._embeddings, self._state.digest())
        try:
            return member.open(OwnModel(self._state.initial(), digest, form))
        except Rejected as error:
            if "this replica's" in str(error):  # another start of the same script cannot help
                raise ModelError(str(error)) from error
            raise

    def _fetch_fixed(self) -> None:
        """Take what is fixed from the shards, once: the job may start from a run. Then only the rest is exchanged."""
        layout, parameters = self._state.layout, self._session.parameters
        if self._state.pushed.size < layout.size:
            whole = np.empty(layout.size, np.float32)
            parameters.pull(whole, np.full(len(parameters.placement.spans), -1, np.int64))
            self._state.load_fixed(whole)
            parameters.cover(layout.pushed)

    def _fetch(self, clock: int) -> None:
        self._settle()
        self._step.fetch(clock)
        self._job.reports.phases.end("fetch")

    def _settle(self) -> None:
        """Wait for the exchange under way, if any, and continue from what it brings."""
        self._job.reports.phases.end("compute")
        self._acknowledge(wait=True)
        self._step.merge()
        self._job.reports.phases.end("push")

    def _acknowledge(self, wait: bool = False) -> None:
        """Record the answer of the exchange under way, if there is one: the coordinator may wait for it."""
        if (pushed := self._step.answer(wait)) is not None:
            self._exchanged(pushed)

    def _at_end(self) -> None:
        """End what is kept beside the module, when all exchanges are answered."""
        self._step.close()
        if self._kept is not None:
            self._kept.end(self._job.job.deadlines.progress_s)

    def _before_compute(self, batch: DrawnBatch) -> None:
        """Prepare for the batch that is computed next: parameters for its clock, and what it draws (dropout)."""
        clock = self._clock(batch.lease, batch.stop)
        if self._step.may_fetch and (clock > self._step.clock or (self._job.waited and not self._step.travels)):
            self._fetch(clock)
        self._job.waited = False
        self._seed_for(batch)

    def _seed_for(self, batch: DrawnBatch) -> None:
        """Seed what the computation of a batch draws, unless that was done already."""
        if batch is not self._seeded:
            key = self._seed, self._job.replica, batch.lease.id, batch.start
            _seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
            self._seeded = batch

    def _clock(self, lease: Any, position: int) -> int:
        """Clock of the step that ends at a position of a lease; 0 where replicas run free."""
        batch = self._job.lockstep
        return lease.clock + (-(-position // batch) - 1) * lease.stride if batch else 0

    # -- what is kept beside the module ------------------------------------------------------------------

    def state(self, *objects: Any, folder: str | Path | None = None, **named: Any) -> None:
        """Keep the state of the script's own objects in a file of this replica, and put back what the file holds.

        Called once, after all of them are made, and before the first step. The state is that of the last exchange that
        was kept: the first, and then one whenever `snapshots.every_s` seconds have passed, and the last at a good end.
        Memory: one more copy of the state.

        Parameters
        ----------
        objects
            What has `state_dict` and `load_state_dict`: optimisers, schedulers, a `GradScaler`, a module such as an
            average of the weights. With a rule of the shards neither optimisers nor schedulers. At most 2^34 bytes.
        folder
            A folder of this machine that outlasts the script. None: the run's own folder, where it is on this machine.
        named
            Further objects, by name.

        Raises
        ------
        UserError
            An object has no such state, or one that is not the script's to keep; or nothing can be written to the
            folder.
        ModelError
            The file holds the state of other objects; it is left as it is.
        DataError
            The file is damaged, and an object that must not begin anew, such as a scheduler, is among them; optimisers
            and loss scalers alone begin anew, with a warning.
        """
        with located():
            if self._kept is not None or self._account.begun:
                raise UserError("sync.state: call it once, before the first sync.step, with all objects")
            job = self._job.job
            kept = {f"argument {number}": one for number, one in enumerate(objects, 1)} | named
            check_kept(kept, self._module, rule=None if isinstance(self._step, LocalStep) else job.strategy.rule.name)
            member = self._session.member
            assert isinstance(member, MembershipClient)
            path = state_file(folder, job, self._session.client.status().run_folder, self._job.replica)
            sequence = self._session.sequences.get(PARAMETERS, 0)
            state = KeptState(kept, path, member.first_run_id, job.snapshots.every_s, sequence)
            state.restore(self._job.replica)
        self._kept = state

    # -- a step ------------------------------------------------------------------------------------------

    def step(
        self, loss: torch.Tensor | float, samples: int, reduction: Literal["mean", "sum"] | None = None
    ) -> PushedStep:
        """Make a step from the gradients that `backward` has accumulated, and clear them; or mark the script's own.

        Where the script makes its own steps, call it after each of them; gradients are left as they are.

        Parameters
        ----------
        loss
            Of the last batch: its mean over the samples, for display and for the detection of divergence.
        samples
            Samples of all batches since the last step: of one, unless gradients are accumulated.
        reduction
            "sum": the loss is a sum over the samples, so the gradients of a step that is made here are divided by their
            number. None: the mean; a loss that is visibly a sum is refused.

        Returns
        -------
        PushedStep

        Raises
        ------
        UserError
            The loss is no number, or a sum; no number of drawn batches has so many samples; or the script is to make
            its own step, and has made none.
        NonFinite
            A gradient is NaN or infinite, and no `GradScaler` of the script leaves the step out; names the tensor.
        RuntimeFailure
            Shards or coordinator do not answer, or this replica was removed.
        """
        phases = self._job.reports.phases
        phases.end("compute")
        if self._kept is not None:
            self._kept.step_begins()
        with located():
            self._watch.check()
            samples = _whole(samples)
            value = checked_loss(loss, reduction)
            stepped = self._job.drawn.step(samples)
            self._check_lockstep(stepped, samples)
        if reduction == "sum":
            self._step.scale_gradients(1.0 / samples)
            value /= samples
        self._account.add(stepped, samples)
        following = self._job.drawn.next()
        clock = self._clock(stepped.lease, stepped.position)
        next_clock = self._clock(following.lease, following.stop) if following else clock + bool(self._job.lockstep)

        def meanwhile() -> None:
            if following is not None:
                self._seed_for(following)

        pushed = self._step.run(stepped, samples, clock, next_clock, meanwhile)
        phases.end("push")
        self._account.add_loss(value, samples, self._step.left_out)
        self._exchanged(pushed)
        if following is not None:
            self._before_compute(following)
        return PushedStep(pushed.staleness if pushed is not None else 0.0, pushed is not None, self._step.left_out)

    def skip(self, samples: int, again: bool = True) -> None:
        """Drop the oldest drawn batches, which have so many samples together, without a step; gradients are cleared.

        Parameters
        ----------
        samples
            Of whole batches.
        again
            Whether their samples go to the replica that asks next, which may be this one; else they count as done.

        Raises
        ------
        UserError
            No number of drawn batches has so many samples; or replicas wait for each other's steps.
        """
        with located():
            if self._job.lockstep:
                raise UserError("sync.skip: replicas wait for each other's steps (staleness), so none can be left out")
            batches = self._job.drawn.skip(_whole(samples))
        self._settle()  # what precedes them must be acknowledged: the samples are reported as done behind it
        if (last := self._account.last) is not None:
            clock = self._clock(last.lease, last.position)
            self._exchanged(self._step.flush(last, clock, clock))
            self._settle()
        self._job.give_back(batches, again)
        self._state.drop_gradients()
        self._step.drop_rows()
        following = self._job.drawn.next()
        if following is not None:
            self._before_compute(following)

    def _exchanged(self, pushed: PushResult | None) -> None:
        """Record the push that the last step has begun, if any, and the answer that has come."""
        sequence = self._session.sequences.get(PARAMETERS, 0)
        self._account.exchanged(sequence, pushed)
        if self._kept is not None:
            self._kept.exchanged(sequence, pushed is not None)

    def _check_lockstep(self, stepped: Stepped, samples: int) -> None:
        batch = self._job.lockstep
        if isinstance(self._job.job.strategy, Diloco):
            self._check_round(stepped, samples)
            return
        if batch and stepped.first.lease.id != stepped.lease.id:
            raise UserError(
                f"sync.step with samples={samples}, of two leases: replicas wait for each other, so that a step is of "
                "one lease; choose strategy.lease as a multiple of strategy.batch that divides data.train"
            )
        if batch and (samples > batch or (samples < batch and stepped.position != stepped.lease.samples)):
            raise UserError(
                f"sync.step with samples={samples}, and strategy.batch is {batch}: replicas wait for each other, so "
                "that each step has so many; only the last one of a lease has fewer"
            )

    def _check_round(self, stepped: Stepped, samples: int) -> None:
        """Check that a step is of one round: its end is where replicas wait for each other."""
        size, first = self._job.job.strategy.clock_samples, stepped.first
        if first.lease.id != stepped.lease.id or first.start // size != (stepped.position - 1) // size:
            raise UserError(
                f"sync.step with samples={samples}, of two rounds: replicas wait for each other after {size} samples, "
                "strategy.batch times strategy.steps, so that a step is of one round; step after each batch, or choose "
                "strategy.lease as a multiple of that number that divides data.train"
            )

    # -- evaluation --------------------------------------------------------------------------------------

    def evaluate(self, score: Score, data: Any = None) -> Scored | None:
        """Run the evaluations that the job wants of this replica; at its end, wait until it needs none.

        Parameters
        ----------
        score
            Called with the module, in evaluation mode and with the parameters that are evaluated, and `data`; returns
            the mean loss, or the mean loss and the accuracy (0 to 1), as a pair; or a mapping of "loss", "accuracy",
            and the metrics of the job's `evaluate.metrics` by name.
        data
            The job's validation data, whatever `score` takes.

        Returns
        -------
        Scored or None
            Loss and accuracy of the last evaluation that this replica made, and its `metrics`; None before the first.

        Raises
        ------
        UserError
            `score` returns something else, or a metric that the job does not name.
        """
        self._acknowledge()
        self._job.evaluate(lambda lease: self._evaluate(lease, score, data))
        return self._result

    def _evaluate(self, lease: wire.EvaluationLease, score: Score, data: Any) -> None:
        with located():
            self._watch.check()
        self._acknowledge(wait=True)  # what is covered changes below; parameters change at their step, and not here
        parameters = self._session.parameters
        parameters.locate(lease.placement_epoch)
        evaluated = np.empty(self._state.pushed.size, np.float32)
        versions = np.full(len(parameters.placement.spans), -1, np.int64)
        parameters.pull(evaluated, versions, vector=lease.vector, exact=True)
        try:
            with self._holding(evaluated), keep_alive(self._session.member), torch.no_grad():
                found = score(self._module, data)
            with located():
                quality = checked_score(found, [name_of(metric) for metric in self._job.job.evaluate.metrics])
        except Exception as error:
            if exit_code_of(error) == UserError.exit_code:  # every script would fail: the job ends with its model
                failed = wire.EvaluationFailed(lease=lease.lease, reason=line_of(error))
                self._job.reports.report(evaluation_failed=failed)
            raise
        self._result = Scored((quality.loss, quality.accuracy), quality.metrics)
        about = wire.Evaluation(lease=lease.lease, **quality._asdict())
        reply = self._job.reports.report(evaluation=about)
        if reply.store_as:
            parameters.locate(reply.placement_epoch)
            self._store(reply.store_as, evaluated)
            self._job.reports.report(stored_lease=lease.lease)

    def _store(self, vector: str, evaluated: np.ndarray) -> None:
        """Store evaluated parameters under a name, with what is fixed."""
        parameters, layout = self._session.parameters, self._state.layout
        parameters.cover(None)
        self._session.assign(vector, np.concatenate([evaluated, self._state.fixed_values()]))
        parameters.cover(layout.pushed if self._state.pushed.size < layout.size else None)

    @contextmanager
    def _holding(self, values: np.ndarray) -> Iterator[None]:
        """Have other parameters in the module, and evaluation mode, within the `with` block."""
        before, kept = self._step.values.copy(), self._state.kept()
        modes = {module: module.training for module in self._module.modules()}
        self._step.values[:] = values
        self._state.load()
        self._module.eval()
        try:
            yield
        finally:
            self._step.values[:] = before
            self._state.restore(kept)
            for module, training in modes.items():
                module.training = training


class PushedStep:
    """Outcome of a step.

    Attributes
    ----------
    staleness
        Updates by other replicas between the fetch and the push, in versions: a mean over the segments.
    pushed
        Whether a push was acknowledged during the call; with a period it is not in each, and a push that travels is in
        that of a later step, or while the script waits.
    left_out
        Whether the script's `GradScaler` has left out this step, as a gradient overflowed: nothing was trained. Where
        the script makes its own steps: whether no optimiser has stepped since the last one.
    """

    __slots__ = ("left_out", "pushed", "staleness")

    def __init__(self, staleness: float, pushed: bool, left_out: bool = False) -> None:
        self.staleness, self.pushed, self.left_out = staleness, pushed, left_out

    def __repr__(self) -> str:
        return f"PushedStep(staleness={self.staleness:g}, pushed={self.pushed}, left_out={self.left_out})"


def _form(about: Mapping[str, Any] | None) -> SampleForm | None:
    try:
        return None if about is None else SampleForm.of_script(about)
    except ValueError as error:
        raise UserError(f"Sync: {error}") from None


def _check_optimizer(optimizer: torch.optim.Optimizer | None, member: Membership) -> None:
    """Check that the job's rule makes the steps of the optimiser."""
    rule = member.job.strategy.rule
    if optimizer is None:
        raise ModelError(
            f"Sync needs the optimiser whose steps the job's rule makes, {rule.name} at the shards: "
            f"Sync(job, module, optimizer); {OTHERS}"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ModelError(
            f"{type(optimizer).__name__} makes its steps from a closure that computes the loss again, and the shards "
            f"get one gradient; {OTHERS}"
        )
    check_rule(optimizer, rule.model_dump())


def _check_parameters(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check that the optimiser has the trained parameters of the module, and no others."""
    held = {id(own) for group in optimizer.param_groups for own in group["params"] if own.requires_grad}
    names = {id(own): name for name, own in module.named_parameters() if own.requires_grad}
    missing = [name for key, name in names.items() if key not in held]
    if missing:
        raise ModelError(f"the optimiser lacks parameter {missing[0]!r} of the module ({len(missing)} missing)")
    if held - names.keys():
        raise ModelError(f"the optimiser has {len(held - names.keys())} parameters that are not the module's")


def _seed(number: int) -> None:
    """Seed torch's generators; `torch.manual_seed` asks for every kind of device, which takes 90 microseconds."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def _whole(samples: Any) -> int:
    """A number of samples: an int, or what stands for one, such as a tensor of one whole number."""
    try:
        return operator.index(samples)
    except TypeError:
        raise UserError(f"samples is {samples!r}, must be a whole number: len(x), say") from None
