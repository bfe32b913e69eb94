"""Checker of histories: is each segment a linearizable object? It knows of dbelief only the file format below.

A history is a file of JSON lines, in any order, one for each call of a client on one segment:

    {"client": 2, "segment": 0, "start": 1.25, "end": 1.31, "push": true, "read": [3, 0, 7]}
    {"client": 0, "segment": 0, "start": 1.27, "end": 1.33, "exchange": -41, "read": [3, 0, 8]}

client
    Index from 0. A client makes one call at a time.
start, end
    Seconds on one clock; `end` null: the client ended, or got no answer, so the call may have had an effect or not.
push
    Whether the call adds 1 to the client's own number in the segment.
exchange
    The client's own number x in what it sends; its other numbers are 0. The rate is 2: the centre w becomes 2 x - w.
read
    The numbers of all clients that the call returned, from before its own effect; null where it returned none. Of a
    bucket of a table, which is a segment too, those of each row; -1 for a number that its rows do not have alike.
clock
    Of a push or pull under a bound on staleness, which `guarantees.py` checks; not needed here.

A line with `"promotion": true`, `segment`, `start` and `end` is a window in which the segment's server was replaced by
its follower. What was applied and not acknowledged by then may be gone, though calls have read it; its client repeats
it. A follower has all effects up to some moment and none after it, so nothing that was applied after a lost effect
survives.

The object is a vector of numbers, 0 at first. A pull reads, a push adds, an exchange reads and reflects. A reflection
is exact in float32, and applied twice it is none: an exchange that is lost or doubled shows in every later read.
`check` searches for an order of the calls that respects real time and explains every read: Wing and Gong (Testing and
Verifying Concurrent Objects, 1993), with a memo of configurations (Lowe, Testing for Linearizability, 2017), one search
for each segment (P-compositionality: Horn and Kroening, 2015).
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
"""Kinds of operations: a call; an effect of a call that a promotion undoes; a promotion."""


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
    windows = [row for row in rows if row.get("promotion")]
    calls = [row for row in rows if not row.get("promotion")]
    operations = [(CALL, row) for row in calls] + [(PROMOTION, row) for row in windows]
    owner = list(range(len(operations)))  # of a phantom: its call
    promotion = [-1] * len(operations)  # of a phantom: the promotion that undoes it
    for place, row in enumerate(calls):
        for number, window in enumerate(windows):
            if (row.get("push") or row.get("exchange") is not None) and _overlap(row, window):
                operations.append((PHANTOM, row))
                owner.append(place)
                promotion.append(len(calls) + number)
    clients = max((max(row["client"] + 1, len(row.get("read") or ())) for row in calls), default=0)
    reads = np.zeros((len(operations), clients), np.int64)
    returned = np.zeros(len(operations), np.bool_)
    for place, row in enumerate(calls):
        if row.get("read") is not None:
            reads[place, : len(row["read"])], returned[place] = row["read"], True
    order, starts = _entries(operations)
    best, visited, explained = _search(
        np.array([kind for kind, _ in operations], np.int64),
        np.array([row.get("client", 0) for _, row in operations], np.int64),
        np.array([bool(row.get("push")) for _, row in operations]),
        np.array([row.get("exchange") is not None for _, row in operations]),
        np.array([row.get("exchange") or 0 for _, row in operations], np.int64),
        reads,
        returned,
        np.array([kind == PHANTOM or row["end"] is None for kind, row in operations]),
        np.array(owner, np.int64),
        np.array(promotion, np.int64),
        order,
        starts,
    )
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
    low: np.uint64, high: np.uint64, state: np.ndarray, kept: np.ndarray, torn: bool
) -> tuple[np.uint64, np.uint64]:  # pragma: no cover (compiled)
    """Hash of a configuration: its operations, and the numbers: the order of exchanges decides them."""
    for one in range(len(state)):
        a, b = _mixed(state[one] * 8192 + 2 * one + 4096)
        low, high = low * np.uint64(3) ^ a, high * np.uint64(5) ^ b
        if torn:
            a, b = _mixed(kept[one] * 8192 + 2 * one + 4097)
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
def _fits(read: np.ndarray, state: np.ndarray) -> bool:  # pragma: no cover (compiled)
    return bool(np.all(read == state))


@njit(cache=True)
def _search(
    kinds: np.ndarray,
    client: np.ndarray,
    adds: np.ndarray,
    exchanges: np.ndarray,
    sent: np.ndarray,
    reads: np.ndarray,
    returned: np.ndarray,
    optional: np.ndarray,
    owner: np.ndarray,
    promotion: np.ndarray,
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
    state, kept, torn = np.zeros(clients, np.int64), np.zeros(clients, np.int64), False  # kept: without phantoms
    placed, chosen = np.zeros(n, np.bool_), np.empty(n, np.int64)
    states, keeps, tears = np.empty((n, clients), np.int64), np.empty((n, clients), np.int64), np.empty(n, np.bool_)
    seen = Dict.empty(types.uint64, types.uint64)
    low, high, left = np.uint64(0), np.uint64(0), n - optional.sum()
    depth, best, best_depth, visited, entry = 0, 0, -1, 0, after[m]
    while left:
        if entry < m and starts[entry]:  # the start of an operation: may it be the next one?
            place = order[entry]
            entry = after[entry]
            kind, changes = kinds[place], adds[place] or exchanges[place]
            if kind == CALL and ((torn and changes) or (returned[place] and not _fits(reads[place], state))):
                continue
            if kind == PHANTOM and (placed[owner[place]] or placed[promotion[place]]):
                continue
            states[depth], keeps[depth], tears[depth] = state, kept, torn
            if kind == PROMOTION and torn:
                state[:], torn = kept, False
            if kind == PHANTOM and not torn:
                kept[:], torn = state, True
            if exchanges[place]:
                for one in range(clients):
                    state[one] = -state[one]
                state[client[place]] += 2 * sent[place]
            elif adds[place]:
                state[client[place]] += 1
            a, b = _mixed(place)
            key, other = _key(low ^ a, high ^ b, state, kept, torn)
            if key in seen and seen[key] == other:
                state[:], kept[:], torn = states[depth], keeps[depth], tears[depth]
                continue
            seen[key] = other
            visited += 1
            low, high, chosen[depth], placed[place] = low ^ a, high ^ b, place, True
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
        low, high, left, placed[place] = low ^ a, high ^ b, left + (not optional[place]), False
        state[:], kept[:], torn = states[depth], keeps[depth], tears[depth]
        _relink(after, before, own_end[place])
        _relink(after, before, own_start[place])
        entry = after[own_start[place]]
    return best, visited, True
