"""The job file as a JSON Schema, for editors: what they complete, explain and underline while a person types.

It knows each field's kind and bounds, not the rules that span fields, nor files and models: `dbelief job check` does.
"""

from typing import Any

from .job import Job

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def schema() -> dict[str, Any]:
    """The schema, as plain values that JSON holds."""
    made: dict[str, Any] = _standard(Job.model_json_schema())
    return {"$schema": DRAFT, "title": "dbelief job", **made}


def _standard(node: Any) -> Any:
    """What Pydantic made, in the words of the draft alone.

    It leaves bounds under their own names where a value is prepared before it is checked, names every field a second
    time as its title, and describes the choice among sections in OpenAPI's way (a constant in each says it already).
    """
    if isinstance(node, list):
        return [_standard(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {}
    for key, value in node.items():
        if key == "discriminator" or (key == "title" and isinstance(value, str)):
            continue
        if key == "description" and isinstance(value, str):
            value = " ".join(value.split())
        made[_BOUNDS.get(key, key)] = _standard(value)
    return made
