"""`dbelief coordinator` and its surroundings: a registry that starts later, fields and address."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator import command as module
from coordinator import process
from coordinator.runtime import event_loop
from dbelief.errors import Unavailable, WriteFailed
from dbelief.process.clock import ManualClock
from dbelief.registry import MemoryRegistry


class Starting(MemoryRegistry):
    """A registry that is up `up_s` seconds after zero; each question before takes three seconds."""

    def __init__(self, clock: ManualClock, up_s: float) -> None:
        super().__init__(clock)
        self._time, self._up_s = clock, up_s

    def holder(self, job: str) -> tuple[str, float] | None:
        if self._time.now() < self._up_s:
            self._time.advance(3.0)
            raise Unavailable("registry redis://registry:6379 does not answer")
        return super().holder(job)


def test_a_registry_that_starts_later_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    process._wait_for_registry(Starting(clock, clock.now() + 5.0), "digits", 60.0, clock, threading.Event())
    said = capsys.readouterr().err.splitlines()
    assert said == ["registry redis://registry:6379 does not answer; waiting for it, for up to 60 s"] * 2


def test_a_registry_that_never_comes_up_is_named() -> None:
    clock = ManualClock()
    began_s = clock.now()
    with pytest.raises(Unavailable, match="redis://registry:6379 does not answer"):
        process._wait_for_registry(Starting(clock, began_s + 1e9), "digits", 60.0, clock, threading.Event())
    assert clock.now() - began_s == 60.0


def test_a_wait_for_the_registry_can_be_broken_off() -> None:
    clock, interrupted = ManualClock(), threading.Event()
    interrupted.set()
    with pytest.raises(Unavailable):
        process._wait_for_registry(Starting(clock, clock.now() + 1e9), "digits", 60.0, clock, interrupted)
    assert clock.now() == 3.0


JOB = """
name: ended
model: {layers: [{dense: 2}], loss: square}
data: {source: none}
strategy: {name: downpour, batch: 1, rule: {name: sgd, rate: 1}}
limits: {samples: 3}
replicas: 0
"""


def test_a_summary_that_cannot_be_written_is_an_error_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise WriteFailed("summary.json: No space left on device")

    monkeypatch.setattr(event_loop, "write_summary", fails)
    (tmp_path / "job.yaml").write_text(f"{JOB}output: {tmp_path}/runs")
    stopped = threading.Event()
    monkeypatch.setattr(process, "sweep", lambda folder: stopped.set())  # once it leads
    arguments = [str(tmp_path / "job.yaml"), "--listen", "127.0.0.1:0", "--registry", "memory:", "--no-pictures"]
    monkeypatch.setattr(module, "interrupt_event", lambda: nullcontext(stopped))
    for prepare in ("prepare_process", "limit_threads"):
        monkeypatch.setattr(module, prepare, lambda *_: None)
    done = CliRunner().invoke(module.command, arguments)
    assert done.exit_code == 1
    assert caplog.messages[-1] == "summary.json: No space left on device"
    assert not (tmp_path / "runs" / "ended" / "address").exists()


@pytest.mark.parametrize(
    ("environment", "options", "overrides", "listen"),
    [
        ({}, [], (), "127.0.0.1:7070"),
        ({"DBELIEF_SET": "", "DBELIEF_LISTEN": ""}, [], (), "127.0.0.1:7070"),
        (
            {"DBELIEF_SET": "limits.epochs=3 shards=4", "DBELIEF_LISTEN": "0.0.0.0:7070"},
            [],
            ("limits.epochs=3", "shards=4"),
            "0.0.0.0:7070",
        ),
        ({"DBELIEF_SET": "shards=4"}, ["--set", "shards=1"], ("shards=1",), "127.0.0.1:7070"),
    ],
)
def test_fields_and_address_may_come_by_the_environment(
    environment: dict[str, str],
    options: list[str],
    overrides: tuple[str, ...],
    listen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[process.Options] = []

    def live(options: process.Options, interrupted: threading.Event) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(process, "run", live)
    for prepare in ("prepare_process", "limit_threads"):  # what they set would last for all tests
        monkeypatch.setattr(module, prepare, lambda *_: None)
    done = CliRunner().invoke(module.command, ["job.yaml", *options], env=environment)
    assert done.exit_code == 0, done.output
    assert [(one.overrides, one.listen) for one in seen] == [(overrides, listen)]
