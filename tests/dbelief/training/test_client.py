"""A custom training loop: its reports, and its evaluations for a job without replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.core.push import Pusher, PushResult
from dbelief.data import Dataset, Split
from dbelief.errors import JobError, ModelError, Unavailable
from dbelief.nn import Batch
from dbelief.rpc.client.coordinator_client import MemberView
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.client import Client
from dbelief.training.session import Session
from tests.jobs import small_job


class Mean:
    """The loss is the mean of all inputs, times the parameter."""

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"w": np.ones(1, np.float32)}

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        return float(views["w"][0] * batch.inputs.mean())


class Place:
    """A session whose coordinator answers as it is told to, by method, and remembers the calls."""

    def __init__(self, **answers: list[Any]) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.stored: list[str] = []
        self.located: list[int] = []
        self.ended: list[str] = []
        split = Split(np.full((4, 2), 0.5, np.float32), np.zeros(4, np.int64))

        def call(method: str, request: Any) -> Any:
            self.calls.append((method, request))
            return answers[method].pop(0)

        def pull(values: np.ndarray, versions: np.ndarray, vector: str = "w", exact: bool = False) -> None:
            values[:], versions[:] = 3.0, 1

        sequences = {"w": 1}  # it has pushed initial values

        def push(*_: Any, **named: Any) -> PushResult:
            sequences["w"] += 1
            return PushResult(0.0)

        member: Any = SimpleNamespace(
            id=2,
            incarnation=7,
            run_id=5,
            client=SimpleNamespace(call=call),
            _processors=lambda now_s: None,
            _answered=lambda sent_s: None,
        )
        self.session = SimpleNamespace(
            job=small_job(name="own"),
            data=Dataset(None, split, split, 1, (2,)),
            backend=select_backend("cpu"),
            model=Mean(),
            metrics=None,
            layout=Layout.of({"w": np.ones(1, np.float32)}),
            member=SimpleNamespace(over=False, state=wire.STATE_READY, call=partial(MemberView.call, member)),
            parameters=SimpleNamespace(
                placement=SimpleNamespace(spans=[0]),
                array=lambda size: np.zeros(size, np.float32),
                pull=pull,
                locate=self.located.append,
                figures=lambda: wire.WireFigures(sent=4),
            ),
            pusher=Pusher(2, 7),
            sequences=sequences,
            push=push,
            assign=lambda vector, values: self.stored.append(vector),
            close=lambda reason, failed=False: self.ended.append(reason),
        )
        self.client = Client(cast("Session", self.session))

    def push(self) -> None:
        self.client.pull()
        self.client.push({"w": np.ones(1, np.float32)}, samples=10, loss=1.0)


def evaluation(set_name: str) -> wire.LeaseReply:
    return wire.LeaseReply(evaluation=wire.EvaluationLease(lease=5, set=set_name, vector="w", placement_epoch=3))


def test_due_evaluation_runs_within_a_push() -> None:
    due = wire.ReportReply(state=wire.STATE_READY, evaluate=True)
    keep = wire.ReportReply(store_as="best.0", placement_epoch=4)
    place = Place(Report=[due, keep, wire.ReportReply()], Lease=[evaluation("validation")])
    place.push()
    assert not place.client.over
    assert [method for method, _ in place.calls] == ["Report", "Lease", "Report", "Report"]
    assert {(request.replica, request.incarnation, request.run_id) for _, request in place.calls} == {(2, 7, 5)}
    assert place.calls[0][1].progress == wire.Progress(sequence=2, pushes=1, samples=10, steps=1, loss_sum=10.0)
    assert place.calls[2][1].evaluation == wire.Evaluation(lease=5, loss=1.5)
    assert place.calls[3][1].stored_lease == 5
    assert place.stored == ["best.0"]
    assert place.located == [3, 4], "replaced shards are not read, and not written to"


def test_reports_have_totals_and_the_number_of_the_last_push() -> None:
    """A client has no leases, and the number counts its initial values too."""
    replies = [wire.ReportReply(state=wire.STATE_READY) for _ in range(3)]
    place = Place(Report=replies)
    for _ in range(3):
        place.push()
    reported = [request.progress for _, request in place.calls]
    assert [(one.sequence, one.pushes, one.samples) for one in reported] == [(2, 1, 10), (3, 2, 20), (4, 3, 30)]
    assert {(one.lease, one.position) for one in reported} == {(0, 0)}


def test_data_are_the_jobs() -> None:
    place = Place()
    assert place.client.data is place.client.data
    assert place.client.data.test is place.session.data.test
    place.session.data = None
    with pytest.raises(JobError, match=r"job own has no data: its data\.source is none"):
        _ = place.client.data


@pytest.mark.parametrize(
    ("names", "why"),
    [(["v", "w"], "'v' is no tensor of the model; wanted w"), (["v"], "'w' is missing; wanted w")],
)
def test_a_gradient_of_other_names_is_refused(names: list[str], why: str) -> None:
    place = Place()
    place.client.pull()
    with pytest.raises(ModelError, match=f"gradient: {why}$"):
        place.client.push(dict.fromkeys(names, np.ones(1, np.float32)))


def test_a_tensor_without_a_gradient_took_no_part() -> None:
    place = Place(Report=[wire.ReportReply(), wire.ReportReply()])
    pushed: list[tuple[bytes, list[str]]] = []

    def push(gradient: np.ndarray, *rest: Any) -> PushResult:
        pushed.append((gradient.tobytes(), list(rest[-1])))
        place.session.sequences["w"] += 1
        return PushResult(0.0)

    place.session.push = push
    place.client.pull()
    for gradient in (np.ones(1, np.float32), None):
        place.client.push({"w": gradient})
    assert pushed == [(np.ones(1, np.float32).tobytes(), []), (np.zeros(1, np.float32).tobytes(), ["w"])]


def test_one_that_another_took_meanwhile_is_not_made() -> None:
    due = wire.ReportReply(state=wire.STATE_READY, evaluate=True)
    place = Place(Report=[due], Lease=[wire.LeaseReply(stop="no evaluation waits")])
    place.push()
    assert [method for method, _ in place.calls] == ["Report", "Lease"]


def test_end_arrives_with_a_push_and_close_evaluates() -> None:
    end = wire.LeaseReply(stop="100 samples trained")
    place = Place(
        Report=[wire.ReportReply(state=wire.STATE_CLOSING), wire.ReportReply(), wire.ReportReply()],
        Lease=[evaluation("validation"), wire.LeaseReply(wait_s=0.0), evaluation("test"), end],
    )
    with place.client as job:
        place.push()
        assert job.over
    assert [method for method, _ in place.calls] == ["Report", "Lease", "Report", "Lease", "Lease", "Report", "Lease"]
    assert place.ended == ["its loop ended"]


def test_close_times_out_waiting_for_the_end() -> None:
    place = Place(
        Report=[wire.ReportReply(state=wire.STATE_CLOSING)], Lease=[wire.LeaseReply(wait_s=0.0) for _ in range(99)]
    )
    place.session.job = small_job(name="own", deadlines={"join_s": 1e-6})
    place.push()
    with pytest.raises(Unavailable, match="waited 1e-06 s for the last evaluations of job own"):
        place.client.close()
    assert place.ended


@pytest.mark.parametrize("over", [False, True])
def test_a_loop_that_breaks_leaves_at_once(over: bool) -> None:
    place = Place(Report=[wire.ReportReply(state=wire.STATE_CLOSING if over else wire.STATE_READY)])
    place.push()
    with pytest.raises(ZeroDivisionError), place.client:
        raise ZeroDivisionError("by zero")
    assert place.ended == ["ZeroDivisionError: by zero"]
    assert [method for method, _ in place.calls] == ["Report"]
