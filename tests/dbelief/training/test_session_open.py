"""A session that cannot begin leaves nothing behind."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.errors import Unavailable
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training import session as module
from dbelief.training.session import JobContext, Session

LAYOUT = Layout.of({"w": np.zeros(3, np.float32)})
LAYERS = """
name: test
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {samples: 100}
device: cpu
"""


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
            return SimpleNamespace(job="test", job_yaml=LAYERS, job_folder=".")

    class Member:
        id = incarnation = run_id = 1
        placement = object()
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
