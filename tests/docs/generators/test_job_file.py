import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import Field

from dbelief.job import Job, schema
from dbelief.job.document.section import Section
from docs.generators import job_file
from docs.generators.tables import Undocumented


def _fields(node: Any) -> Iterator[str]:
    """Names of all fields below a part of the schema."""
    if isinstance(node, dict):
        yield from node.get("properties", ())
        for below in node.values():
            yield from _fields(below)
    elif isinstance(node, list):
        for below in node:
            yield from _fields(below)


def test_every_field_of_the_schema_is_in_the_reference() -> None:
    text = job_file.job_file()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert rows == set(_fields(schema()))
    assert set(Job.model_fields) <= rows


def test_every_link_leads_to_one_heading() -> None:
    for text in (job_file.job_file(), job_file.comparison_file()):
        anchors = re.findall(r"\{#([\w-]+)\}$", text, re.MULTILINE)
        links = set(re.findall(r"\]\(#([\w-]+)\)", text))
        assert len(anchors) == len(set(anchors))
        assert links <= set(anchors)


def test_types_and_defaults_are_shown() -> None:
    text = job_file.job_file()
    assert "| a whole number from 1 to 256 | `1` |" in text
    assert "| [constant](#job-schedule--constant), " in text
    assert "| `max_pool` | The largest of each window" in text
    assert "each a number above 0 and below 1 | required |" in job_file.comparison_file()
    assert "| nothing | `null` |" in text  # relu and its like have no fields


def test_a_missing_description_is_refused() -> None:
    class Silent(Section):
        """A section."""

        spoken: int = Field(description="Said")
        silent: int = 3

    with pytest.raises(Undocumented, match="field silent has no description"):
        job_file._Reference("job.", Silent).text()
