"""An event of a run as one line of text: members that joined, failed or were replaced, and the job's actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dbelief.monitor.format import plural
from dbelief.monitor.states import job_state

Event = Mapping[str, Any]


def _member(event: Event) -> str:
    member = f"{event['role']} {event['id']}"
    name = f" ({event['name']})" if event.get("name") else ""
    reason = f": {event['reason']}" if event.get("reason") else ""
    what = "failed" if event["what"] == "died" else event["what"]
    return f"{member}{name} {what}{reason}"


def _restored(event: Event) -> str:
    text = f"shard {event['shard']} was restored" + (f" from snapshot {event['set']}" if event.get("set") else "")
    lost = event.get("of", 0) > event.get("samples", 0)
    return text + (f": it lacks samples {event['samples']:,} to {event['of']:,}" if lost else "")


def _workers_scaled(event: Event) -> str:
    text = f"{plural(event['from'], 'worker')} made {event['samples_per_s']:,.0f} samples/s"
    if event["why"] == "back":
        return f"{text}, {event['factor']:.2f} times what there was before: {event['to']} wanted again"
    return f"{text}; {plural(event['to'], 'worker')} wanted, for {event['factor']:.2f} times as many as predicted"


def _state(event: Event) -> str:
    reason = f": {event['reason']}" if event.get("reason") else ""
    state = job_state(str(event["state"]))
    return f"job {'failed' if state == 'failed' else 'is ' + state}{reason}"


_TEXTS: Mapping[str, Callable[[Event], str]] = {
    "member": _member,
    "state": _state,
    "snapshot": lambda event: f"snapshot {event['set']} is complete",
    "snapshot_failed": lambda _: "snapshot failed",
    "warm_start": lambda event: f"warm start ended after {event['samples']:,} samples",
    "takeover": lambda _: "a new coordinator took over",
    "promoted": lambda event: f"follower of shard {event['shard']} was promoted to leader",
    "followed": lambda event: f"shard {event['shard']} has a follower in sync",
    "unfollowed": lambda event: f"shard {event['shard']} lost its follower: {event['reason']}",
    "table_full": lambda event: (
        f"table {event['table']} is full at shard {event['shard']}: keys without a row get none, training goes on"
    ),
    "shard_back": _restored,
    "shard_taken_in": lambda event: f"shard {event['shard']} is ready to take segments",
    "rolled_back": lambda event: f"rolled back to snapshot {event['set']}: {plural(event['iterations'], 'iteration')}",
    "scaling": lambda event: f"resharding from {event['from']} to {plural(event['to'], 'shard')}",
    "workers_scaled": _workers_scaled,
    "scaled": lambda event: f"resharded to {plural(event['to'], 'shard')} in {event['seconds']:.1f} s",
    "not_moved": lambda event: (
        f"{plural(event['segments'], 'segment')} stayed at shard {event['shard']}: {event['reason']}"
    ),
    "evaluation_failed": lambda event: f"{event['set']} evaluation failed: {event['reason']}",
    "bundle_failed": lambda event: f"replica {event['replica']} failed at a bundle: {event['reason']}",
}
_TROUBLE = frozenset(
    {
        "snapshot_failed",
        "takeover",
        "unfollowed",
        "rolled_back",
        "not_moved",
        "bundle_failed",
        "evaluation_failed",
        "table_full",
    }
)


def event_text(name: str, fields: Event) -> str | None:
    """The event as a line without its time; None for an event that curves show, or an unknown one."""
    text = _TEXTS.get(name)
    return None if text is None else text(fields)


def is_trouble(name: str, fields: Event) -> bool:
    """Whether the event reports a failure or a loss."""
    return name in _TROUBLE or fields.get("what") == "died" or (name == "state" and fields.get("state") == "failed")
