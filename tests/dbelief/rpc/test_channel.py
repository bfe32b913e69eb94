"""From errors to statuses and back, without a port."""

from collections.abc import Iterator
from typing import Any, NoReturn

import grpc
import pytest

from dbelief import errors
from dbelief.rpc.channel import answers, named_errors, streams


class Aborted(Exception):
    """What grpc raises inside a handler that aborts."""


class Context:
    """The one method of a servicer context that handlers need here."""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Aborted(code, details)


CONTEXT: Any = Context()


class Broken(grpc.RpcError):
    """A call that ended with a status."""

    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


class Service:
    """Handlers that do as the request says."""

    @answers
    def unary(self, request: Exception | str, context: Any) -> str:
        if isinstance(request, Exception):
            raise request
        return request

    @streams
    def stream(self, request: Exception | str, context: Any) -> Iterator[str]:
        yield "first"
        if isinstance(request, Exception):
            raise request
        yield request


STATUSES = [
    (errors.Rejected("fenced"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Moved("stale epoch"), grpc.StatusCode.ABORTED),
    (errors.Deposed("another leads"), grpc.StatusCode.UNAVAILABLE),
    (errors.ResourceExhausted("all shards are there"), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable("nobody there"), grpc.StatusCode.INTERNAL),
    (errors.SnapshotError("torn"), grpc.StatusCode.DATA_LOSS),
    (errors.ModelError("no parameters"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.JobError("no such field"), grpc.StatusCode.INVALID_ARGUMENT),
    (ValueError("wrong length"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NonFinite("NaN"), grpc.StatusCode.INTERNAL),
    (errors.RuntimeFailure("something else"), grpc.StatusCode.INTERNAL),
]
every_status = pytest.mark.parametrize(("error", "code"), STATUSES, ids=lambda value: type(value).__name__)


@every_status
def test_handler_maps_errors_to_status_and_reason(error: Exception, code: grpc.StatusCode) -> None:
    with pytest.raises(Aborted) as unary:
        Service().unary(error, CONTEXT)
    assert unary.value.args == (code, str(error))
    stream = Service().stream(error, CONTEXT)
    assert next(stream) == "first"
    with pytest.raises(Aborted) as streamed:
        next(stream)
    assert streamed.value.args == (code, str(error))


def test_successful_results_pass_through() -> None:
    assert Service().unary("yes", CONTEXT) == "yes"
    assert list(Service().stream("yes", CONTEXT)) == ["first", "yes"]


def test_a_fault_of_our_own_is_not_dressed_up_as_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    """Its place is told to both sides, in one line."""
    with pytest.raises(Aborted) as unary:
        Service().unary(AssertionError("broken\ninvariant"), CONTEXT)
    with pytest.raises(Aborted) as streamed:
        list(Service().stream(KeyError("missing"), CONTEXT))
    said = capsys.readouterr().err.splitlines()
    for caught, reason, line in zip(
        (unary, streamed), ("AssertionError: broken invariant", "KeyError:"), said, strict=True
    ):
        code, details = caught.value.args
        assert code is grpc.StatusCode.UNKNOWN
        assert details.startswith(reason)
        assert __file__ in details
        assert line == f"a call failed: {details}"


def test_a_caller_that_has_gone_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Broken):
        list(Service().stream(Broken(grpc.StatusCode.CANCELLED, None), CONTEXT))
    assert capsys.readouterr().err == ""


AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=str)
def test_a_status_is_either_unreachable_or_refused(code: grpc.StatusCode) -> None:
    kinds = {grpc.StatusCode.DATA_LOSS: errors.SnapshotError, **dict.fromkeys(AWAY, errors.Unavailable)}
    kind = kinds.get(code, errors.Rejected)
    with pytest.raises(kind, match=r"^push: shard 1: the reason$") as caught, named_errors("push: shard 1"):
        raise Broken(code, "the reason")
    assert isinstance(caught.value.__cause__, grpc.RpcError)


@pytest.mark.parametrize("details", [None, ""])
def test_a_status_without_a_reason_is_named(details: str | None) -> None:
    with pytest.raises(errors.Unavailable, match=r"^pull: unavailable$"), named_errors("pull"):
        raise Broken(grpc.StatusCode.UNAVAILABLE, details)


@every_status
def test_whatever_a_peer_answers_is_an_answer(error: Exception, code: grpc.StatusCode) -> None:
    kinds: dict[type[Exception], type[errors.RuntimeFailure]]
    kinds = {errors.SnapshotError: errors.SnapshotError, errors.Deposed: errors.Unavailable}  # another one replies then
    answer = kinds.get(type(error), errors.Rejected)
    with pytest.raises(answer, match=str(error)), named_errors("push"):
        raise Broken(code, str(error))


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), named_errors("push"):
        raise ZeroDivisionError
