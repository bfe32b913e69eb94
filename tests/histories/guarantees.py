"""Further checks of a history, weaker than linearizability, each with a message of its own; the format: `checker.py`.

They hold for segments without exchanges, whose numbers only rise. Read-your-writes and monotonic reads are two of the
session guarantees of Terry et al. (Session Guarantees for Weakly Consistent Replicated Data, 1994). Bounded staleness
is that of Ho et al. (More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013, section 3):
a pull of clock c sees every push of clocks below c - N.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def violations(lines: Iterable[Line]) -> list[str]:
    """What is violated, one text for each read that violates something; none: [].

    Cost: O(n log n) for n lines.
    """
    segments: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        segments[line["segment"]].append(line)
    found = []
    for segment, rows in sorted(segments.items()):
        if all(row.get("exchange") is None for row in rows):
            calls = sorted((row for row in rows if not row.get("promotion")), key=lambda row: float(row["start"]))
            windows = [row for row in rows if row.get("promotion")]
            found += [f"segment {segment}: {text}" for text in _own(calls, windows) + _stale(calls)]
    return found


def _own(calls: Sequence[Line], windows: Sequence[Line]) -> list[str]:
    """Reads without an own acknowledged push, and reads below an earlier one of the same client.

    Where a server was replaced between the two reads or during them, the earlier one may have seen what was lost.
    """
    found = []
    acknowledged: dict[int, int] = defaultdict(int)
    last: dict[int, Line] = {}
    for call in calls:
        client, read = call["client"], call.get("read")
        if read is not None:
            own = read[client] if client < len(read) else 0
            if own < acknowledged[client]:
                found.append(f"read-your-writes: client {client} read {own} of its {acknowledged[client]} pushes")
            before = last.get(client)
            replaced = before is not None and any(
                before["start"] <= window["end"] and window["start"] <= call["end"] for window in windows
            )
            if before is not None and not replaced and any(a < b for a, b in zip(read, before["read"], strict=True)):
                found.append(f"monotonic reads: client {client} read {read} after {before['read']}")
            last[client] = call
        acknowledged[client] += bool(call.get("push")) and call["end"] is not None
    return found


def _stale(calls: Sequence[Line]) -> list[str]:
    """Reads of a clock that miss a push which the bound makes them wait for."""
    clocks: dict[int, list[int]] = defaultdict(list)
    for call in calls:
        if call.get("push") and call.get("clock") is not None and call["end"] is not None:
            clocks[call["client"]].append(call["clock"])
    found = []
    for call in calls:
        if call.get("clock") is None or call.get("read") is None:
            continue
        for client, pushed in clocks.items():
            due = bisect_left(pushed, call["clock"] - call["staleness"])
            if call["read"][client] < due:
                found.append(
                    f"staleness: the pull of clock {call['clock']} read {call['read'][client]} pushes of client "
                    f"{client}, and {due} are of clocks below {call['clock'] - call['staleness']}"
                )
    return found
