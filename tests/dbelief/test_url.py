from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.errors import JobError, UserError
from dbelief.job import parse_job
from dbelief.url import Url, is_url, parse_url


@pytest.mark.parametrize("text", ["s3://bucket/runs", "s3://bucket", "file:///srv/runs", "memory://x"])
def test_a_url_stays_as_it_is(text: str) -> None:
    assert parse_url(f"{text}/") == text
    assert parse_url(text) / "a" / "b" == f"{text}/a/b"
    assert (parse_url(text) / "a" / "b").name == "b"
    assert (parse_url(text) / "a").parent == text


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3:///runs", "file://host/runs", "s3://a//b", "s3://a/../b", "s3://a/b?c", "s3://a b", "gs://a/b"],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UserError, match=r"://\.\.\.: must "):
        parse_url(text)


def test_a_login_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match=r"^s3://\.\.\.: must not contain a login: ") as raised:
        parse_url("s3://AKIAQUIETLY:hidden@bucket/runs")
    assert "AKIAQUIETLY" not in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_paths_are_no_urls() -> None:
    assert [is_url(text) for text in ("runs", "/srv/runs", "s3:/bucket", "C:\\runs", "s3://bucket")] == [0, 0, 0, 0, 1]


def test_below_is_without_steps_upwards() -> None:
    prefix = Url("s3://bucket/runs")
    assert (prefix / "digits").is_below(prefix)
    for text in ("s3://bucket/runs", "s3://bucket/runs-2/a", "s3://bucket/runs/../a", "s3://bucket/runs//a"):
        assert not Url(text).is_below(prefix)


@pytest.mark.parametrize("field", ["output", "start_from"])
def test_a_job_file_shows_no_login(field: str, tmp_path: Path) -> None:
    text = f"name: far\nmodel: {{layers: [relu], loss: square}}\n{field}: s3://AKIAQUIETLY:hidden@bucket/runs\n"
    with pytest.raises(JobError, match=rf"line 3: {field}: s3://\.\.\.: must not contain a login: ") as raised:
        parse_job(text, tmp_path, "job")
    assert "AKIAQUIETLY" not in str(raised.value)
    assert "hidden" not in str(raised.value)
