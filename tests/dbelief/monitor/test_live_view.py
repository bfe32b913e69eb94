import io
from typing import Any

import pytest
from rich.console import Console

from dbelief.monitor.format import duration
from dbelief.monitor.live_view import LiveView, line, picture, progress
from dbelief.process.clock import ManualClock
from tests.terminal import shown


def status(**other: Any) -> dict[str, Any]:
    return {
        "job": "digits",
        "state": "training",
        "reason": "",
        "samples": 12_570,
        "total_samples": 50_280,
        "epoch": 10.0,
        "loss": 0.123456,
        "validation_accuracy": 0.9555,
        "validation_loss": 0.2,
        "samples_per_s": 8123.4,
        "staleness_mean": 2.25,
        "elapsed_s": 65.4,
        "shards": 2,
        "members": [
            {"id": "shard-0", "role": "ps", "state": "ready", "samples": None, "staleness": None},
            *replicas(2),
        ],
        **other,
    }


ROUNDS = {
    "rounds": 1200, "pushes_per_round": 3.75, "late_pushes": 12, "late_age": 1.5, "sent_per_sample": 1234.0,
    "received_per_sample": 617.0, "computing": 0.875,
}  # fmt: skip


def replicas(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"replica-{i}", "role": "worker", "state": "computing", "samples": 6000 + i, "staleness": 1.5}
        for i in range(count)
    ]


def drawn(status: dict[str, Any], height: int = 40, width: int = 90) -> list[str]:
    return shown(picture(status, height), width, height)


def test_view_shows_progress_and_members() -> None:
    text = drawn(status())
    assert text[0].startswith("digits  training")
    assert text[0].endswith("2 shards, 2 replicas")
    assert text[1].endswith("25 %  12,570 of 50,280 samples")
    assert text[3].split() == ["loss", "validation", "samples/s", "staleness", "epoch", "elapsed"]
    assert text[4].split() == ["0.1235", "95.55", "%", "8,123", "2.25", "10.00", "1:05"]
    assert text[6].split() == ["replica", "state", "samples", "staleness", "last", "seen"]
    assert text[7].split() == ["replica-0", "computing", "6,000", "1.50", "–"]
    assert not any("shard-0" in row for row in text)


def test_a_job_in_lockstep_shows_its_rounds() -> None:
    text = drawn(status(rounds=ROUNDS), width=90)
    assert text[3].split()[2:5] == ["samples/s", "age", "epoch"]
    assert text[5] == "round 1,200 of 3.75 replicas, 12 late; computing 88 %; a sample 1.23 kB out, 617 B in"
    assert text[7].split() == ["replica", "state", "samples", "age", "last", "seen"]
    assert f" | {text[5]} | loss 0.1235 | " in line(status(rounds=ROUNDS))
    assert len(drawn(status(rounds=ROUNDS), width=60)) == len(text), "a narrow terminal cuts the line"
    before = dict.fromkeys(ROUNDS) | {"rounds": 0, "late_pushes": 0}
    assert not any("round" in row for row in drawn(status(rounds=before)))


def test_silent_member_shows_its_last_heartbeat() -> None:
    members = [{"id": "replica-0", "role": "worker", "state": "silent", "samples": 1, "last_seen_s": 4.26}]
    assert drawn(status(members=members))[7].split() == ["replica-0", "silent", "1", "–", "4.3", "s"]


def test_a_job_without_samples_to_reach_shows_its_time() -> None:
    row = drawn(status(total_samples=None, wall_limit_s=130.8))[1]
    assert row.endswith("50 %  1:05 of 2:10")
    row = drawn(status(total_samples=None))[1]
    assert row.endswith("12,570 samples")
    assert "%" not in row


BATCH = {
    "iteration": 12, "iterations": 48, "loss": 0.25, "gradient_norm": 0.0125, "step": 1.0, "pass": 14,
    "portions_done": 3, "portions": 60, "backups_launched": 3, "backups_won": 2,
}  # fmt: skip


def test_a_batch_method_shows_its_iterations() -> None:
    text = drawn(status(batch=BATCH), width=80)
    assert text[1].endswith("25 %  12 of 48 iterations"), "whatever the samples say"
    assert text[3].split() == ["loss", "gradient", "norm", "step", "validation", "samples/s", "backups", "elapsed"]
    assert text[4].split() == ["0.2500", "0.0125", "1", "95.55", "%", "8,123", "3", "(2", "won)", "1:05"]
    assert text[5] == "pass 14: 3 of 60 portions"
    assert text[7].split() == ["replica", "state", "samples", "last", "seen"]
    assert text[8].split() == ["replica-0", "computing", "6,000", "–"]


def test_a_batch_method_before_its_first_pass() -> None:
    begun = {"iteration": 0, "iterations": None, "loss": None, "gradient_norm": None, "step": None, "pass": 0}
    text = drawn(status(batch=begun))
    assert text[1].endswith("0 iterations")
    assert "%" not in text[1]
    assert text[4].split()[:3] == ["–", "–", "–"]
    assert text[6].split()[0] == "replica"
    assert progress(status(batch=begun, wall_limit_s=654.0)) == pytest.approx(0.1)


def test_the_line_of_a_batch_method() -> None:
    assert line(status(batch=BATCH)) == (
        "digits: training | 12 of 48 iterations (25 %) | pass 14: 3 of 60 portions | loss 0.2500 | "
        "gradient norm 0.0125 | step 1 | validation 95.55 % | samples/s 8,123 | backups 3 (2 won) | elapsed 1:05 | "
        "2 shards | 2 replicas"
    )


@pytest.mark.parametrize("batch", [None, BATCH])
def test_many_replicas_are_counted_where_they_do_not_fit(batch: dict[str, Any] | None) -> None:
    text = drawn(status(members=replicas(500), batch=batch), height=24)
    assert len(text) <= 24
    assert text[-1].strip() == ("and 487 more" if batch else "and 486 more")


def test_unknown_figures_are_not_drawn() -> None:
    text = drawn({"job": "digits", "state": "waiting", "reason": "for 2 [more] replicas"})
    assert text[0].startswith("digits  waiting  for 2 [more] replicas")
    assert text[4].split() == ["–", "–", "–", "–", "–", "0", "s"]


def test_the_line_is_plain() -> None:
    assert line(status(reason="limit")) == (
        "digits: training (limit) | 12,570 of 50,280 samples (25 %) | loss 0.1235 | validation 95.55 % | "
        "samples/s 8,123 | staleness 2.25 | epoch 10.00 | elapsed 1:05 | 2 shards | 2 replicas"
    )


@pytest.mark.parametrize(
    ("other", "share"),
    [
        ({"samples": 60_000}, 1.0),
        ({"samples": 0}, 0.0),
        ({"total_samples": None}, None),
        ({"total_samples": None, "wall_limit_s": 654.0}, 0.1),
    ],
)
def test_progress(other: dict[str, Any], share: float | None) -> None:
    assert progress(status(**other)) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (3725, "1:02:05")]
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_lines_without_terminal_are_rate_limited() -> None:
    clock, file = ManualClock(), io.StringIO()
    with LiveView(Console(file=file, width=40), every_s=10.0, clock=clock) as view:
        for samples in range(25):
            view.update(status(samples=samples, total_samples=None))
            clock.advance(1.0)
    lines = file.getvalue().splitlines()
    assert [text.split(" | ")[1] for text in lines] == ["0 samples", "10 samples", "20 samples", "24 samples"]
    assert "\x1b" not in file.getvalue()


def test_the_line_of_the_end_is_printed_at_once_and_only_once() -> None:
    file = io.StringIO()
    with LiveView(Console(file=file), clock=ManualClock()) as view:
        for state in ("training", "closing", "done", "done"):
            view.update(status(state=state))
    assert [text.partition(" | ")[0].split(": ")[1] for text in file.getvalue().splitlines()] == ["training", "done"]


def test_last_picture_stays_and_the_cursor_is_restored() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=90, height=40, color_system=None, legacy_windows=False)

    def interrupted() -> None:
        with LiveView(console) as view:
            view.update(status(samples=1))
            view.update(status(samples=50_280, state="done"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = file.getvalue()
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert text.rindex("50,280 of 50,280") > text.rindex("1 of 50,280")
    assert text.rindex("replica-1") > text.rindex("done")


def test_plain_line_shows_state_and_reason() -> None:
    said = line({"job": "digits", "state": "waiting", "waiting_for": "shards (0 of 2 joined)"})
    assert said.startswith("digits: waiting for shards (0 of 2 joined) | ")
    said = line({"job": "digits", "state": "failed", "reason": "no shard came"})
    assert said.startswith("digits: failed (no shard came) | ")
