"""Reference of `summary.json`, from its Pydantic model."""

from __future__ import annotations

from dbelief.rundir.summary import Summary

from .tables import code, plain, required, table


def reference() -> str:
    """All fields.

    Raises
    ------
    Undocumented
        A field has no description.
    """
    fields = Summary.model_fields.items()
    rows = [(code(name), plain(required(field.description, f"summary.json: {name}"))) for name, field in fields]
    return table(("field", "meaning"), rows)
