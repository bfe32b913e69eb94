"""Cost of TLS and a token: pulls and pushes of a shard with credentials, beside one without.

    python -m benchmarks.wire.tls [--rounds 31] [--parameters 4194304]

Two shards of 16 MiB, each a process of its own, are asked in turn; ratios are of medians, plain time to sealed time.
Calls of up to 2 MiB use direct streams, as those of a small step.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import options, timing
from dbelief.core.push import Push, Pusher
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.security.certificates import make_credentials
from dbelief.security.identity import clear, load
from dbelief.tools.bench.shards import Shards

SIZE = 4 << 20
PUSHER = Pusher(1, 2)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--parameters", type=int, default=SIZE, help="of each shard")
    arguments = parser.parse_args()
    rounds, size = arguments.rounds, arguments.parameters
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_credentials(folder / "certs", 1.0, [], [])
        clients = {"plain": _client(stack, folder / "plain", None, size)}
        load(folder / "certs" / "worker")
        clients["sealed"] = _client(stack, folder / "sealed", folder / "certs", size)
        calls = {kind: _calls(client) for kind, client in clients.items()}
        for number, kind in timing.interleaved(sorted(calls), rounds):
            for name, call in calls[kind].items():
                spent[name, kind].append(timing.seconds(partial(call, number + 1)))
    medians = {key: statistics.median(times) for key, times in spent.items()}
    found = {f"{name}_x": medians[name, "plain"] / medians[name, "sealed"] for name in ("pull", "push")}
    print(f"{'call':<5} {'plain ms':>9} {'sealed ms':>10} {'speed':>6}")
    for name in ("pull", "push"):
        plain, sealed = medians[name, "plain"], medians[name, "sealed"]
        print(f"{name:<5} {1e3 * plain:9.1f} {1e3 * sealed:10.1f} {plain / sealed:6.2f}")
    print(json.dumps(found))


def _client(stack: ExitStack, folder: Path, credentials: Path | None, size: int) -> ShardedParameterClient:
    """A client of a shard of its own, with its connections open."""
    folder.mkdir()
    shards = stack.enter_context(Shards(folder, size, rule="sgd", credentials=credentials))
    client = shards.client(PUSHER)
    stack.callback(client.close)
    segments = len(shards.spans)
    client.pull(np.empty(size, np.float32), np.full(segments, -1, np.int64))
    return client


def _calls(client: ShardedParameterClient) -> dict[str, Callable[[int], object]]:
    size = client.placement.size
    out, gradient = np.empty(size, np.float32), np.ones(size, np.float32)
    segments = len(client.placement.spans)

    def pull(number: int) -> object:
        return client.pull(out, np.full(segments, -1, np.int64))

    def push(number: int) -> object:
        return client.push(gradient, np.zeros(segments, np.int64), Push(PUSHER, number, np.float32(0)))

    return {"pull": pull, "push": push}


if __name__ == "__main__":
    prepare_process()
    clear()
    main()
