"""The section `scale`, and what it goes with."""

from __future__ import annotations

from typing import Any

import pytest

from dbelief.errors import JobError
from dbelief.job import load_job
from dbelief.job.scale import AutoScale
from tests.jobs import small_file, small_job


def test_auto_alone_has_bounds() -> None:
    job = small_job(scale="auto", replicas=3)
    assert job.scale == AutoScale()
    assert job.scale is not None
    assert (job.scale.min, job.scale.most(job.replicas), job.scale.every_s) == (1, 6, 60.0)
    assert small_job().scale is None


def test_bounds_are_those_given() -> None:
    job = small_job(scale={"workers": "auto", "min": 2, "max": 5}, replicas=4)
    assert job.scale is not None
    assert (job.scale.min, job.scale.most(4)) == (2, 5)


def test_it_is_set_on_the_command_line_and_written_again(tmp_path: Any) -> None:
    job = load_job(small_file(tmp_path), {"scale": "auto", "replicas": "2"})
    path = tmp_path / "again.yaml"
    path.write_text(job.to_yaml())
    assert load_job(path).scale == AutoScale()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale": {"min": 3, "max": 2}, "replicas": 3}, "scale.max: must be at least min, 3, not 2"),
        ({"scale": {"max": 2}, "replicas": 3}, "replicas: must be 1 to 2, the bounds of scale, not 3"),
        ({"scale": "auto", "pin_cores": True}, "scale: must be null with pin_cores"),
        ({"scale": "auto", "kubernetes": {"scale": {}}}, "scale: must be null with kubernetes.scale"),
        ({"scale": "often"}, "scale: must be"),
        ({"scale": {"every_s": 1}}, "scale.every_s: must be a number of at least 10"),
        (
            {"scale": "auto", "strategy": {"name": "sandblaster", "iterations": 2}},
            "scale: must be null with sandblaster",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        small_job(**fields)
