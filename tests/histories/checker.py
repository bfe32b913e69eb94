"""Checker of histories: is each segment a linearizable object? It knows of dbelief only the file format below.

A history is a file of JSON lines, in any order, one for each call of a client on one segment:

    {"client": 2, "segment": 0, "start": 1.25, "end": 1.31, "push": true, "read": [3, 0, 7]}

client
    Index from 0. A client makes one call at a time.
start, end
    Seconds on one clock; `end` null: the client ended, or got no answer, so the call may have had an effect or not.
push
    Whether the call adds 1 to the client's own number in the segment.
read
    The numbers of all clients that the call returned, from before its own push; null where it returned none.

A line with `"promotion": true`, `segment`, `start` and `end` is a window in which the segment's server was replaced by
its follower. What was applied and not acknowledged by then may be gone, though calls have read it; its client repeats
it.

The object is a vector of counters. A pull reads, a push adds, an exchange does both. `check` searches for an order of
the calls that respects real time and explains every read: Wing and Gong (Testing and Verifying Concurrent Objects,
1993), with a memo of configurations (Lowe, Testing for Linearizability, 2017), one search for each segment
(P-compositionality: Horn and Kroening, 2015).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numba.typed import Dict

CALL, PHANTOM, PROMOTION = 0, 1, 2
"""Kinds of operations: a call; the effect of a push that a promotion may undo; a promotion."""


@dataclass(frozen=True)
class Verdict:
    """Outcome for one segment.

    Attributes
    ----------
    segment : int
    calls : int
    linearizable : bool
    stuck_at : str
        The call that no order explains, where there is none; else "".
    configurations : int
        Configurations that the search has visited.
    """

    segment: int
    calls: int
    linearizable: bool
    stuck_at: str
    configurations: int


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read a history.

    Raises
    ------
    ValueError
        A line is not a call or promotion; names the line.
    """
    lines = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            fields = json.loads(line)
            needed = {"segment", "start", "end"} if fields.get("promotion") else {"client", "segment", "start", "end"}
            if not needed <= fields.keys() or (fields["end"] is not None and fields["end"] < fields["start"]):
                raise ValueError(f"must have {', '.join(sorted(needed))}, and an end after its start")
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        lines.append(fields)
    return lines


def check(lines: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    """Check every segment of a history.

    Cost: about linear in the calls where few overlap; exponential in the overlapping ones at worst.
    """
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        segments.setdefault(line["segment"], []).append(line)
    return [_check_segment(segment, rows) for segment, rows in sorted(segments.items())]


def _check_segment(segment: int, rows: Sequence[Mapping[str, Any]]) -> Verdict:
    promotions = [row for row in rows if row.get("promotion")]
    calls = [row for row in rows if not row.get("promotion")]
    operations = [(CALL, row) for row in calls] + [(PROMOTION, row) for row in promotions]
    operations += [(PHANTOM, row) for row in calls if row.get("push") and any(_overlap(row, one) for one in promotions)]
    clients = max((max(row["client"] + 1, len(row.get("read") or ())) for row in calls), default=0)
    kinds = np.array([kind for kind, _ in operations], np.int64)
    client = np.array([row.get("client", 0) for _, row in operations], np.int64)
    adds = np.array([kind != PROMOTION and bool(row.get("push")) for kind, row in operations])
    reads = np.zeros((len(operations), clients), np.int64)
    returned = np.zeros(len(operations), np.bool_)
    for place, (kind, row) in enumerate(operations):
        if kind == CALL and row.get("read") is not None:
            reads[place, : len(row["read"])], returned[place] = row["read"], True
    optional = np.array([kind == PHANTOM or row["end"] is None for kind, row in operations])
    order, starts = _entries(operations)
    best, visited, explained = _search(kinds, client, adds, reads, returned, optional, order, starts)
    stuck = "" if explained else json.dumps(dict(operations[best][1]))
    return Verdict(segment, len(calls), bool(explained), stuck, int(visited))


def _overlap(call: Mapping[str, Any], window: Mapping[str, Any]) -> bool:
    return call["start"] <= window["end"] and (call["end"] is None or call["end"] >= window["start"])


def _entries(operations: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of operations in the order of time, starts first: their operations, and whether it is a start.

    Operations that need not happen have no end.
    """
    entries = []
    for place, (kind, row) in enumerate(operations):
        entries.append((row["start"], 0, place))
        if kind != PHANTOM and row["end"] is not None:
            entries.append((row["end"], 1, place))
    entries.sort()
    return np.array([place for *_, place in entries], np.int64), np.array([not end for _, end, _ in entries])


@njit(cache=True)
def _mixed(place: int) -> tuple[np.uint64, np.uint64]:  # pragma: no cover (compiled)
    """Two independent hashes of an operation; a set's hash is the exclusive or over its members."""
    x = np.uint64(place + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    y = (x ^ (x >> np.uint64(31))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(31)), y ^ (y >> np.uint64(32))


@njit(cache=True)
def _key(
    low: np.uint64, high: np.uint64, phantom: np.ndarray, n: int
) -> tuple[np.uint64, np.uint64]:  # pragma: no cover (compiled)
    """Hash of a configuration: its operations, and phantoms, as the operations do not say which were undone."""
    for one in range(len(phantom)):
        if phantom[one]:
            a, b = _mixed(n + one)
            low, high = low ^ a, high ^ b
    return low, high


@njit(cache=True)
def _unlink(after: np.ndarray, before: np.ndarray, entry: int) -> None:  # pragma: no cover (compiled)
    if entry >= 0:
        after[before[entry]], before[after[entry]] = after[entry], before[entry]


@njit(cache=True)
def _relink(after: np.ndarray, before: np.ndarray, entry: int) -> None:  # pragma: no cover (compiled)
    if entry >= 0:
        after[before[entry]], before[after[entry]] = entry, entry


@njit(cache=True)
def _fits(
    kind: int, own: int, read: np.ndarray, returned: bool, counts: np.ndarray, phantom: np.ndarray
) -> bool:  # pragma: no cover (compiled)
    """Whether an operation may be next: its read is what the object holds; one phantom a client."""
    if returned:
        for one in range(len(counts)):
            if read[one] != counts[one] + phantom[one]:
                return False
    return kind != PHANTOM or phantom[own] == 0


@njit(cache=True)
def _search(
    kinds: np.ndarray,
    client: np.ndarray,
    adds: np.ndarray,
    reads: np.ndarray,
    returned: np.ndarray,
    optional: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
) -> tuple[int, int, bool]:  # pragma: no cover (compiled)
    """Operation that the longest attempt could not place, configurations visited, and whether an order was found."""
    n, m, clients = len(kinds), len(order), reads.shape[1]
    after, before = np.arange(1, m + 2), np.arange(-1, m)  # the entries that are left, in a ring with m as its head
    after[m], before[0] = 0, m
    own_start, own_end = np.full(n, -1), np.full(n, -1)
    for entry in range(m):
        if starts[entry]:
            own_start[order[entry]] = entry
        else:
            own_end[order[entry]] = entry
    counts, phantom = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    chosen, undone = np.empty(n, np.int64), np.zeros((n, clients), np.int64)  # undone: phantoms before a promotion
    seen = Dict.empty(types.uint64, types.uint64)
    low, high, left = np.uint64(0), np.uint64(0), n - optional.sum()
    depth, best, best_depth, visited, entry = 0, 0, -1, 0, after[m]
    while left:
        if entry < m and starts[entry]:  # the start of an operation: may it be the next one?
            place = order[entry]
            entry = after[entry]
            if not _fits(kinds[place], client[place], reads[place], returned[place], counts, phantom):
                continue
            undone[depth] = phantom
            if kinds[place] == PROMOTION:
                phantom[:] = 0
            elif kinds[place] == PHANTOM:
                phantom[client[place]] = 1
            a, b = _mixed(place)
            key, other = _key(low ^ a, high ^ b, phantom, n)
            if key in seen and seen[key] == other:
                phantom[:] = undone[depth]
                continue
            seen[key] = other
            visited += 1
            low, high, chosen[depth] = low ^ a, high ^ b, place
            counts[client[place]] += kinds[place] == CALL and adds[place]
            depth, left = depth + 1, left - (not optional[place])
            _unlink(after, before, own_start[place])
            _unlink(after, before, own_end[place])
            entry = after[m]
            continue
        if depth > best_depth and entry < m:  # an end: no order of the operations before it lets this one be next
            best, best_depth = order[entry], depth
        if depth == 0:
            return best, visited, False
        depth -= 1
        place = chosen[depth]
        a, b = _mixed(place)
        low, high, left = low ^ a, high ^ b, left + (not optional[place])
        counts[client[place]] -= kinds[place] == CALL and adds[place]
        phantom[:] = undone[depth]
        _relink(after, before, own_end[place])
        _relink(after, before, own_start[place])
        entry = after[own_start[place]]
    return best, visited, True
