"""Local steps of DiLoCo: what a replica pushes, and what it continues from, follow from what it computed and fetched.

For each replica its parameters are kept beside its own: after each step, and as an exchange changes them. With w after
the last step, s where the push began and a what has arrived, it continues from a + (w - s). A push has a - w with the
last a that has arrived, the weight and the samples of all steps since the fragment's last push, and the position after
the last of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch, Parameters
from dbelief.core.push import PARAMETERS, Push
from dbelief.rpc.client.shard_client import ShardedParameterClient
from tests.simulation.models.marks import LENGTH, ROWS, SAMPLES
from worker.strategies.diloco import Diloco

from .rounds import RoundWatch, Sent


class Due(NamedTuple):
    """A segment's part of a push that is about to begin."""

    difference: np.ndarray
    samples: np.ndarray
    position: int


class Learner:
    """Parameters of one replica, (`ROWS`, `LENGTH`) float32: its own, those at the last push, and those fetched."""

    def __init__(self) -> None:
        self.own = np.zeros((ROWS, LENGTH), np.float32)
        self.at_push, self.fetched = self.own.copy(), self.own.copy()
        self.samples = np.zeros((ROWS, SAMPLES), np.int64)  # since a segment's last push
        self.position = self.behind = 0  # samples of the lease, and steps since the last push
        self.due: dict[int, Due] = {}
        self.arrived: dict[int, np.ndarray] = {}

    def begin(self, out: np.ndarray) -> None:
        """Start from what was fetched."""
        self.own[:] = self.fetched[:] = out.reshape(ROWS, LENGTH)

    def merge(self) -> None:
        """Continue from what has arrived."""
        for index, values in self.arrived.items():
            self.fetched[index] = values
            self.own[index] = values + (self.own[index] - self.at_push[index])
        self.arrived.clear()

    def push(self, indices: list[int]) -> None:
        """Note what is pushed of these segments."""
        for index in indices:
            difference = self.fetched[index] - self.own[index]
            self.due[index] = Due(difference, self.samples[index].copy(), self.position)
            self.at_push[index], self.samples[index] = self.own[index], 0
        self.behind = 0


class LocalStepWatch:
    """Compares replicas with what they have to be.

    Parameters
    ----------
    violation
        Called with the text of each violation.
    """

    def __init__(self, rounds: RoundWatch, violation: Callable[[str], None]) -> None:
        self._rounds, self._violation = rounds, violation
        self._learners: dict[Parameters, Learner] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all replicas within the `with` block."""
        train, step, exchange = Diloco.train, Diloco._step, Diloco._exchange
        pull, push = ShardedParameterClient.pull, ShardedParameterClient.push

        def trained(own: Diloco, lease: DataLease, first_sequence: int) -> None:
            self._learner(own).position = 0
            train(own, lease, first_sequence)

        def stepped(own: Diloco, batch: Any) -> None:
            learner = self._learner(own)
            if learner.behind >= own._local._settings.delay:
                learner.merge()
            self._check_values(own, learner)
            step(own, batch)
            samples = batch.inputs[:, 0].astype(int)
            learner.own[:] = own._local.values.reshape(ROWS, LENGTH)
            learner.samples[:, samples] += 1
            learner.position, learner.behind = learner.position + len(samples), learner.behind + 1

        def exchanged(own: Diloco) -> None:
            learner = self._learner(own)
            learner.merge()  # what travelled has arrived: one push travels at a time
            self._check_values(own, learner)
            learner.push(sorted(index for fragment in own._local.due for index in fragment.within or range(ROWS)))
            exchange(own)

        def pulled(client: ShardedParameterClient, out: np.ndarray, versions: np.ndarray, **named: Any) -> float:
            reports = versions[0] == np.iinfo(np.int64).max  # only a clock: nothing is read
            waited_s = pull(client, out, versions, **named)
            if client in self._learners and not named.get("exact") and not reports:
                self._learners[client].begin(out)
                self._check_fetched(client, range(ROWS), named["clock"], out)
            return waited_s

        def pushed(
            client: ShardedParameterClient,
            values: Any,
            versions: Any,
            header: Push,
            fetch: Fetch | None = None,
            **named: Any,
        ) -> Any:
            learner = self._learners.get(client)
            if learner is None or header.assign or header.vector != PARAMETERS:
                return push(client, values, versions, header, fetch, **named)
            indices = sorted(named["within"] or range(ROWS))
            self._check_push(learner, indices, values, header)
            result = push(client, values, versions, header, fetch, **named)
            for index in indices:
                self._rounds.acknowledged(index, header)
            if fetch is not None:
                learner.arrived.update((index, fetch.out.reshape(ROWS, LENGTH)[index].copy()) for index in indices)
                self._check_fetched(client, indices, header.clock + 1, fetch.out)
            return result

        with ExitStack() as stack:
            for owner, name, wrapper in (
                (Diloco, "train", trained),
                (Diloco, "_step", stepped),
                (Diloco, "_exchange", exchanged),
                (ShardedParameterClient, "pull", pulled),
                (ShardedParameterClient, "push", pushed),
            ):
                stack.enter_context(mock.patch.object(owner, name, wrapper))
            yield

    def _learner(self, own: Diloco) -> Learner:
        return self._learners.setdefault(own._shards, Learner())

    def _check_values(self, own: Diloco, learner: Learner) -> None:
        differs = (own._local.values.reshape(ROWS, LENGTH) != learner.own).any(axis=1)
        if differs.any():
            self._violation(
                f"replica {own._local._pusher.replica} continues from others than what it fetched and computed, in "
                f"segments {np.flatnonzero(differs).tolist()}"
            )

    def _check_push(self, learner: Learner, indices: list[int], values: np.ndarray, push: Push) -> None:
        who = f"replica {push.pusher.replica}, push {push.sequence}"
        for index in indices:
            due, sent = learner.due.pop(index, None), values.reshape(ROWS, LENGTH)[index].copy()
            if due is None:
                self._violation(f"{who}: segment {index} is not due")
                return
            if not np.array_equal(sent, due.difference):
                self._violation(f"{who} of segment {index} is not what its steps have changed since its last fetch")
            if (push.samples, push.position) != (due.samples.sum(), due.position):
                self._violation(
                    f"{who} of segment {index} has weight {push.samples} and position {push.position}, after "
                    f"{due.samples.sum()} samples and at {due.position}"
                )
            self._rounds.sent(index, Sent(push, sent, due.samples))

    def _check_fetched(self, client: ShardedParameterClient, indices: Any, clock: int, out: np.ndarray) -> None:
        assert client._pusher is not None
        for index in indices:
            self._rounds.fetched(index, clock, client._pusher, out.reshape(ROWS, LENGTH)[index])
