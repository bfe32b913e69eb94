"""Cost of replication on one host: a push to a shard that has a follower, beside one to a shard that has none.

    python -m benchmarks.shards.replication [--parameters 100000000] [--rounds 9] [--rule adagrad] [--tcp] [--json]

All processes are on this host. A push is timed from its call to its acknowledgement; processor time is the shard's,
the follower's included. Pushes to the two shards are interleaved; figures are medians.

The floor is the same ratio without messages: all cores of this process apply the rule to the segments of two copies,
to both while the gradient of a segment is in the cache, over the time for one copy.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import options, timing
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from dbelief.optim.apply import apply_rule
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.tools.bench.shards import Shards
from ps_server.store.concurrency import ThreadPool

PUSHER = Pusher(1, 2)


@dataclass
class _Side:
    """One shard, with or without a follower."""

    shards: Shards
    client: ShardedParameterClient
    gradient: np.ndarray
    number: int = 0

    def push(self) -> None:
        """Push once."""
        self.number += 1
        versions = np.zeros(len(self.shards.spans), np.int64)
        self.client.push(self.gradient, versions, Push(PUSHER, self.number, np.float32(1e-6)))


class _Floor:
    """Time to apply a push to two copies of the parameters, over that for one copy."""

    def __init__(self, side: _Side, rule: str) -> None:
        self._spans, self._gradient, self._rule = side.shards.spans, side.gradient, make_rule(rule, {})
        self._pool = ThreadPool()
        self._copies = [self._copy(), self._copy()]
        self.ratios: list[float] = []

    def _copy(self) -> list[np.ndarray]:
        """Parameters and optimiser state."""
        return [np.full(self._gradient.size, 0.1, np.float32) for _ in range(1 + len(self._rule.state))]

    def measure(self, pushes: int) -> None:
        """Add a ratio."""
        one, two = (timing.seconds(partial(self._push, self._copies[:count], pushes)) for count in (1, 2))
        self.ratios.append(two / one)

    def _push(self, copies: Sequence[list[np.ndarray]], pushes: int) -> None:
        for _ in range(pushes):
            self._pool.map(partial(self._apply, copies), self._spans, self._gradient.nbytes)

    def _apply(self, copies: Sequence[list[np.ndarray]], span: SegmentSpan) -> None:
        part = slice(span.start, span.start + span.length)
        for parameters, *state in copies:
            states = tuple(one[part] for one in state)
            apply_rule(self._rule, parameters[part], self._gradient[part], states, np.float32(1e-6), 1)


def measure(size: int, rule: str, rounds: int, pushes: int, tcp: bool) -> dict[str, Any]:
    """All figures, by side and as ratios."""
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = {kind: _side(stack, folder, size, rule, kind == "replicated", tcp) for kind in ("plain", "replicated")}
        floor = _Floor(sides["plain"], rule)
        for one in sides.values():
            one.push()
        for _, kind in timing.interleaved(sorted(sides), rounds):
            one = sides[kind]
            before_s = one.shards.cpu_s()
            wall[kind].append(timing.seconds(partial(_several, one, pushes)) / pushes)
            cpu[kind].append((one.shards.cpu_s() - before_s) / pushes)
            if kind == "plain":
                floor.measure(pushes)
    ratios = [with_s / without_s for with_s, without_s in zip(wall["replicated"], wall["plain"], strict=True)]
    return {
        **{f"{kind}_ms": 1e3 * statistics.median(times) for kind, times in wall.items()},
        **{f"{kind}_cpu_ms": 1e3 * statistics.median(times) for kind, times in cpu.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "floor": statistics.median(floor.ratios),
    }


def _several(side: _Side, pushes: int) -> None:
    for _ in range(pushes):
        side.push()


def _side(stack: ExitStack, folder: Path, size: int, rule: str, followed: bool, tcp: bool) -> _Side:
    place = folder / ("replicated" if followed else "plain")
    place.mkdir()
    shards = stack.enter_context(Shards(place, size, rule=rule, followed=followed))
    client = shards.client(PUSHER)
    stack.callback(client.close)
    gradient = np.empty(size, np.float32) if tcp else client.array(size)
    gradient[:] = 1e-3
    return _Side(shards, client, gradient)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pushes", type=int, default=1, help="in a round (1)")
    parser.add_argument("--rule", default="adagrad")
    parser.add_argument("--tcp", action="store_true", help="the pusher shares no memory")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    found = measure(words.parameters, words.rule, words.rounds, words.pushes, words.tcp)
    if words.json:
        print(json.dumps(found))
        return
    for kind in ("plain", "replicated"):
        print(f"{kind:<11} {found[f'{kind}_ms']:9.2f} ms a push, {found[f'{kind}_cpu_ms']:9.2f} ms of the shard")
    print(f"floor       {found['floor']:9.2f}, the rule applied to two copies without messages")
    print(f"ratio       {found['ratio']:9.2f}, of {', '.join(f'{one:.2f}' for one in found['ratios'])}")


if __name__ == "__main__":
    prepare_process()
    main()
