"""A session that cannot begin leaves nothing behind; one that begins draws what it pushes, and nothing else."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.data import load
from dbelief.errors import Unavailable
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training import session as module
from dbelief.training.session import JobContext, Session
from tests.jobs import small_fields, small_job

LAYOUT = Layout.of({"w": np.zeros(3, np.float32)})


@pytest.mark.parametrize("breaks_at", ["wait", "join", "placement", "initial"])
def test_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch, breaks_at: str) -> None:
    ended: list[str] = []

    def at(place: str) -> None:
        if place == breaks_at:
            raise Unavailable(place)

    class Client:
        def __init__(self, address: str) -> None:
            self.close = lambda: ended.append("client")

        def wait(self, patience_s: float) -> None:
            at("wait")

        def status(self, job: bool) -> Any:
            return SimpleNamespace(job="test", job_yaml=json.dumps(small_fields()), job_folder=".")

    class Member:
        id = incarnation = run_id = 1
        placement = SimpleNamespace(dense=1)
        placed = None

        def __init__(self, *_: object, **__: object) -> None:
            at("join")
            self.leave = lambda reason: ended.append(f"member {reason}")

        def wait_for(self, *_: object) -> None:
            at("placement")

    monkeypatch.setattr(module, "CoordinatorClient", Client)
    monkeypatch.setattr(module, "MembershipClient", Member)
    monkeypatch.setattr(module, "select_backend", lambda _: select_backend("cpu"))
    monkeypatch.setattr(
        module, "ShardedParameterClient", lambda *_, **__: SimpleNamespace(close=lambda: ended.append("parameters"))
    )
    monkeypatch.setattr(Session, "_initialise", lambda self, begin: at("initial"))
    with pytest.raises(Unavailable, match=breaks_at):
        Session.open(JobContext.fetch("nowhere", 1.0), wire.ROLE_CLIENT)
    order = ["parameters", "member could not begin", "client"]
    asked = ["client"] if breaks_at != "wait" else []
    assert ended == asked + order[{"wait": 2, "join": 2, "placement": 1, "initial": 0}[breaks_at] :]


@pytest.mark.parametrize("pushes", [False, True])
def test_only_the_worker_that_pushes_initial_values_draws_them(monkeypatch: pytest.MonkeyPatch, pushes: bool) -> None:
    seeds: list[int] = []
    states = [wire.STATE_INITIALISING, wire.STATE_READY] if pushes else [wire.STATE_READY]

    class Member:
        id = incarnation = run_id = 1
        placement = SimpleNamespace(epoch=1, spans=[None], dense=1)
        placed = None
        initialise = pushes

        def __init__(self, *_: object, **__: object) -> None:
            self.leave = lambda *_: None

        state = property(lambda self: states[0])

        def wait_for(self, happened: Any, *_: object) -> None:
            assert happened()

        def call(self, *_: object) -> None:
            states.pop(0)

        def beat(self) -> None:
            pass

    class Parameters:
        placement = Member.placement

        def __init__(self, *_: object, **__: object) -> None:
            self.close = self.locate = lambda *_: None

        def push(self, values: Any, *_: object) -> None:
            assert len(next(values.blocks([(0, 100)]))) == 100

    real = np.random.default_rng
    monkeypatch.setattr(module, "CoordinatorClient", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "MembershipClient", Member)
    monkeypatch.setattr(module, "ShardedParameterClient", Parameters)
    job = small_job(seed=23)
    task = JobContext("nowhere", job, load(job.data, job.folder), select_backend("cpu"))

    def counted(seed: int) -> np.random.Generator:
        seeds.append(seed)
        return real(seed)

    monkeypatch.setattr(np.random, "default_rng", counted)
    session = Session.open(task, wire.ROLE_REPLICA)
    assert session.layout.size == 64 * 10 + 10
    assert seeds == [23] * pushes
