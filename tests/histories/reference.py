"""Histories that are correct by construction: an object that carries out each call at one moment, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]


def atomic(calls: int, clients: int, seed: int, pending: float = 0.0, exchanges: float = 0.0) -> list[Line]:
    """A history of an object that executes each call at one moment between its start and its end.

    Parameters
    ----------
    pending
        Share of calls that get no answer; half of them have an effect.
    exchanges
        Share of exchanges; the rest are pushes and pulls, and both at once.
    """
    rng = random.Random(seed)
    moments = _moments(rng, calls, clients, pending)
    state, lines = [0] * clients, []
    for _, line in moments:
        if rng.random() < exchanges:
            line["exchange"] = rng.randrange(-1000, 1001)
        else:
            line["push"] = rng.random() < 0.6
        line["read"] = state.copy() if line["end"] is not None and (exchanges or rng.random() < 0.8) else None
        if line["end"] is not None or rng.random() < 0.5:
            state = effect(state, line)
        lines.append(line)
    rng.shuffle(lines)
    return lines


def _moments(rng: random.Random, calls: int, clients: int, pending: float) -> list[tuple[float, Line]]:
    """Calls with start, end and the moment of their effect, in the order of the moments."""
    clock = [0.0] * clients
    moments: list[tuple[float, Line]] = []
    for _ in range(calls):
        client = rng.randrange(clients)
        if clock[client] < 0:
            continue
        start = clock[client] + rng.random()
        moment, end = sorted(start + rng.random() for _ in range(2))
        clock[client] = end
        line: Line = {"client": client, "segment": 0, "start": start, "end": end}
        if rng.random() < pending:
            line["end"], clock[client] = None, -1.0
        moments.append((moment, line))
    return sorted(moments, key=lambda pair: pair[0])


def effect(state: Sequence[int], line: Line) -> list[int]:
    """The state after a call."""
    client = line["client"]
    if line.get("exchange") is not None:
        return [2 * line["exchange"] * (one == client) - number for one, number in enumerate(state)]
    return [number + (one == client and bool(line.get("push"))) for one, number in enumerate(state)]


def replicated(calls: int, clients: int, seed: int, exchanges: float = 0.0) -> list[Line]:
    """A history of an atomic object whose server is replaced in the middle, with the loss of what it may lose.

    The last effects before that moment are lost where none of their calls has an answer yet, and no call reads after
    them but pulls. Their clients repeat them.
    """
    rng = random.Random(seed)
    moments = _moments(rng, calls, clients, 0.0)
    at_s = moments[len(moments) // 2][0]
    for _, line in moments:
        if rng.random() < 0.5:
            line["push"] = False
        elif rng.random() < exchanges:
            line["exchange"] = rng.randrange(-1000, 1001)
        else:
            line["push"] = True
    before = [row for row in moments if row[0] < at_s and (row[1].get("push") or "exchange" in row[1])]
    lost: list[Line] = []
    while before and before[-1][1]["end"] > at_s:
        lost.append(before.pop()[1])
    gone = {id(line) for line in lost}
    again = [(rng.uniform(at_s, line["end"]), line) for line in lost]
    state = kept = [0] * clients
    lines: list[Line] = []
    replaced = False
    for moment, line in sorted(moments + again, key=lambda pair: pair[0]):
        if moment >= at_s and not replaced:
            state, replaced = kept, True
        line["read"] = state.copy() if not line.get("push") else None
        state = effect(state, line)
        if id(line) not in gone:
            kept = effect(kept, line)
        if moment >= at_s or id(line) not in gone:
            lines.append(line)
    return [*lines, {"promotion": True, "segment": 0, "start": at_s - 0.1, "end": at_s + 0.1}]


def bounded(pulls: int, clients: int, seed: int, staleness: int) -> list[Line]:
    """A history of clients that pull and push by clocks, none more than `staleness` + 1 ahead of another."""
    rng = random.Random(seed)
    clocks, ends, state, lines = [0] * clients, [0.0] * clients, [0] * clients, []
    now_s = 0.0
    for _ in range(pulls):
        client = rng.choice([one for one in range(clients) if clocks[one] - min(clocks) <= staleness])
        common = {"client": client, "segment": 0, "clock": clocks[client], "staleness": staleness}
        for push in (False, True):
            now_s += 1.0
            start = max(ends[client], now_s - 3 * rng.random())
            ends[client] = now_s + 0.9 * rng.random()
            read = None if push else state.copy()
            lines.append({**common, "start": start, "end": ends[client], "push": push, "read": read})
            state[client] += push
        clocks[client] += 1
    return lines
