"""Reference of the metrics, from the table that the processes create them by."""

from __future__ import annotations

from dbelief.telemetry.metric_specs import TABLE, MetricSpec

from .tables import code, plain, required, table

ROLES = {"ps": "Shards", "worker": "Workers", "coordinator": "Coordinators"}


def reference() -> str:
    """A table for each role.

    Raises
    ------
    Undocumented
        A metric has no help or no unit.
    """
    head = ("metric", "meaning", "kind", "unit", "labels")
    parts = []
    for role, specs in TABLE.items():
        parts.append(f"## {ROLES[role]}\n")
        parts.append(table(head, [_row(f"dbelief_{role}_{spec.name}", spec) for spec in specs]))
    return "\n".join(parts)


def _row(name: str, spec: MetricSpec) -> tuple[str, ...]:
    labels = [
        code(label) + (f": {', '.join(map(code, values))}" if values else "") for label, values in spec.labels.items()
    ]
    meaning = plain(required(spec.help, f"metric {name}"))
    if spec.standby:
        meaning += " (also of a standby)"
    return code(name), meaning, spec.kind, plain(required(spec.unit, f"unit of metric {name}")), "; ".join(labels)
