"""Time saved by computing while messages travel, over a slow network.

    python -m benchmarks.model_parallel.overlap [--steps 60] [--rates 1000,300,100]

Two locally connected layers, a pooling and a dense layer on two ranks, which are threads. Their clocks are kept, not
read: a rank's goes on by the processor time of its thread, and, where it waits, to when the message is through, 0.1 ms
+ bytes / rate after both sides have started it. So the machine may do other work beside, and has as many cores as there
are ranks. Steps with and without overlap take turns; times are medians of the slower rank's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dbelief.rpc.grpc_settings import limit_threads

limit_threads(1)  # a core for each rank

import numpy as np  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.harness import report  # noqa: E402
from benchmarks.harness.options import new_parser  # noqa: E402
from dbelief.arrays.backend import select_backend  # noqa: E402
from dbelief.nn import Batch, build_network  # noqa: E402
from dbelief.partition import Grid  # noqa: E402
from dbelief.worker.comm import Communicator, Message, run_ranks  # noqa: E402
from dbelief.worker.comm.engine import Engine, Handle  # noqa: E402
from dbelief.worker.partition.network import PartitionedNetwork  # noqa: E402

LATENCY_S = 1e-4
SHAPE, SAMPLES, CLASSES = (64, 64, 1), 32, 10
LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("local", {"window": 12, "block": 4, "maps": 8}),
    ("relu", {}),
    ("local", {"window": 12, "block": 4, "maps": 8}),
    ("max_pool", {"size": 4}),
    ("dense", {"units": CLASSES}),
]


class Slow:
    """Counts when messages of another engine would be through on a network of some rate; all ranks start alike often.

    Attributes
    ----------
    starts
        Of all ranks: when each started its messages, by its own clock.
    """

    def __init__(self, engine: Engine, bytes_per_s: float, starts: dict[tuple[int, int], float]) -> None:
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.check, self.abort, self.close = engine.check, engine.abort, engine.close
        self._engine, self._bytes_per_s, self.starts = engine, bytes_per_s, starts
        self._waited_s, self._count = 0.0, 0

    def now(self) -> float:
        """Seconds computed and waited."""
        return time.thread_time() + self._waited_s

    def until(self, due_s: float) -> None:
        """Let the clock go on to some time, if it has not."""
        self._waited_s += max(0.0, due_s - self.now())

    def start(self, messages: Sequence[Message]) -> Handle:
        self._count += 1
        self.starts[self.rank, self._count] = self.now()
        takes_s = LATENCY_S + max((message.array.nbytes for message in messages), default=0) / self._bytes_per_s
        ranks = {self.rank, *(message.peer for message in messages)}
        keys = [(rank, self._count) for rank in ranks] if messages else []
        return Handle(_Slowly(self._engine.start(messages), self, keys, takes_s).wait)


class _Slowly:
    def __init__(self, handle: Handle, slow: Slow, keys: list[tuple[int, int]], takes_s: float) -> None:
        self._handle, self._slow, self._keys, self._takes_s = handle, slow, keys, takes_s

    def wait(self, deadline_s: float) -> None:
        self._handle.wait(deadline_s)
        if self._keys:
            self._slow.until(max(self._slow.starts[key] for key in self._keys) + self._takes_s)


def measure(steps: int, bytes_per_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each step with overlap, and of the one after it without."""
    starts: dict[tuple[int, int], float] = {}

    def rank(comm: Communicator) -> np.ndarray:
        engine = Slow(comm.engine, bytes_per_s, starts)
        slow = Communicator(engine)
        cpu = select_backend("cpu")
        networks = [
            PartitionedNetwork(
                build_network(LAYERS, "softmax_cross_entropy", features=SHAPE, outputs=CLASSES, backend=cpu),
                slow, Grid(2, 1), overlaps,
            )
            for overlaps in (True, False)
        ]  # fmt: skip
        rng = np.random.default_rng(0)
        batch = Batch(rng.standard_normal((SAMPLES, *SHAPE), dtype=np.float32), rng.integers(0, CLASSES, SAMPLES))
        tensors = networks[0].parameters(np.random.default_rng(1))
        boxes = [box for box in networks[0].layout.boxes if box.rank == comm.rank]
        views = {box.name: np.ascontiguousarray(tensors[box.name][box.index]) for box in boxes}
        out = {name: np.empty_like(values) for name, values in views.items()}
        taken = np.empty((2 + steps, 2))  # two to warm up
        for step in range(2 + steps):
            for place, network in enumerate(networks):
                slow.barrier()
                start_s = engine.now()
                network.loss_and_gradient(views, batch, out)
                taken[step, place] = engine.now() - start_s
        return taken[2:]

    slower = np.maximum(*run_ranks(2, rank))
    return slower[:, 0], slower[:, 1]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rates", default="1000,300,100", help="Mbit/s")
    arguments = parser.parse_args()
    table = Table("network", "with overlap, ms", "without, ms", "with / without", "quartiles")
    rows: list[dict[str, Any]] = []
    for rate in [np.inf, *map(float, arguments.rates.split(","))]:
        overlapped, plain = measure(arguments.steps, rate * 1e6 / 8)
        low, middle, high = map(float, np.quantile(overlapped / plain, [0.25, 0.5, 0.75]))
        network = "unlimited" if np.isinf(rate) else f"{rate:g} Mbit/s"
        times_s = {"with_s": float(np.median(overlapped)), "without_s": float(np.median(plain))}
        rows.append({"network": network, **times_s, "ratio": middle, "low": low, "high": high})
        times = (f"{1e3 * taken:.1f}" for taken in times_s.values())
        table.add_row(network, *times, f"{middle:.3f}", f"{low:.3f}-{high:.3f}")
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
