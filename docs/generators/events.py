"""Reference of the events of `events.jsonl`, from their specification."""

from __future__ import annotations

from dbelief.rundir.event_specs import COMMON, EVENTS

from .tables import code, plain, required, table


def reference() -> str:
    """The fields of all events, and a part for each event.

    Raises
    ------
    Undocumented
        An event or a field has no description.
    """
    parts = ["## Fields of every event\n", _fields("every event", COMMON)]
    for name, spec in EVENTS.items():
        parts += [f"## {name}\n", plain(required(spec.meaning, f"event {name}")) + "\n"]
        if spec.fields:
            parts.append(_fields(f"event {name}", spec.fields))
    return "\n".join(parts)


def _fields(event: str, fields: dict[str, str]) -> str:
    rows = [(code(name), plain(required(text, f"{event}: field {name}"))) for name, text in fields.items()]
    return table(("field", "meaning"), rows)
