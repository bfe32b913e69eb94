"""Events as lines for people."""

from __future__ import annotations

from dbelief.monitor.event_text import event_text, is_trouble


def test_a_changed_number_of_workers_has_its_numbers() -> None:
    event = {"from": 2, "to": 4, "why": "more", "samples_per_s": 1234.5, "factor": 1.876}
    assert event_text("workers_scaled", event) == (
        "2 workers made 1,234 samples/s; 4 workers wanted, for 1.88 times as many as predicted"
    )
    back = {**event, "from": 4, "to": 2, "why": "back", "factor": 1.01}
    assert event_text("workers_scaled", back) == (
        "4 workers made 1,234 samples/s, 1.01 times what there was before: 2 wanted again"
    )
    assert not is_trouble("workers_scaled", back)
