import pytest

from dbelief.tools.report.time_shares import in_words, shares


def test_shares_are_of_all_replicas_together() -> None:
    found = shares(
        {"0": {"compute": 5.0, "fetch": 1.0, "push": 2.0, "data": 1.0, "wait": 1.0}, "1": {"compute": 8.0, "wait": 2.0}}
    )
    assert found == pytest.approx({"compute": 0.65, "data": 0.05, "communicate": 0.15, "wait": 0.15})
    assert in_words(found) == "compute 65 %, data 5 %, communicate 15 %, wait 15 %"


def test_no_reports_give_no_shares() -> None:
    assert shares({}) == shares({"0": {}}) == {}
