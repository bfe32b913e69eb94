"""Rows of an embedding on a parameter server of torch RPC, as in torch's tutorials, for `rows_beside_rpc.py`.

    python rows_peer.py WAY TRANSPORT ROWS TRAINERS STEPS

The server has `nn.EmbeddingBag(sparse=True)` with Adagrad. Ways:

    autograd  the trainer calls the module at the server, and distributed autograd and a `DistributedOptimizer` make the
              step there: each key of the mini-batch travels, and its row and gradient with it
    distinct  the trainer asks for the rows of the distinct keys of its mini-batch, and sends a gradient for each of
              them to a function of the server, which steps under a lock

Transports: "shared memory", which torch RPC chooses by itself on one host, and "TCP".

It prints rows/s of all trainers, each counted from when all have warmed up, as JSON. It needs torch, and not dbelief.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from benchmarks.workers.step_peer import spawned

WIDTH, RATE, EPS, LIMIT = 16, 0.05, 1e-10, 0.01
KEYS = 512 * 26
"""Keys of a mini-batch, repeats among them: of 512 samples with a key in each of 26 columns."""
BATCHES = WARM = 32
"""Mini-batches that are drawn, which take turns; steps after which all rows are there, and all code is loaded."""
MEETING_S = 120.0


class Drawn:
    """A trainer's mini-batches of keys, by Zipf's law, and the gradient of their rows; drawn before the first step."""

    def __init__(self, rows: int, trainer: int) -> None:
        rng = np.random.default_rng(trainer)
        keys = (rows ** rng.random((BATCHES, KEYS))).astype(np.int64) - 1
        self._keys = list(torch.from_numpy(keys))
        self.distinct = [int(np.unique(own).size) for own in keys]
        self.weights = torch.from_numpy(rng.standard_normal((KEYS, WIDTH), np.float32))

    def keys(self, step: int) -> torch.Tensor:
        """(KEYS, 1): a bag for each key."""
        return self._keys[step % BATCHES].view(-1, 1)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        """The loss of (KEYS, WIDTH) rows."""
        return (rows * self.weights).mean()


class Clock:
    """Rows/s of a trainer, counted from when all have warmed up.

    Parameters
    ----------
    folder
        Of this run; trainers note there that they have warmed up.
    """

    def __init__(self, drawn: Drawn, folder: Path, trainer: int, trainers: int) -> None:
        self._drawn, self._folder, self._trainer, self._trainers = drawn, folder, trainer, trainers
        self._began_s, self._rows, self.steps = 0.0, 0, 0

    def begin_step(self) -> int:
        """Note that a step begins; its number."""
        if self.steps == WARM:
            self._meet()
            self._began_s = time.perf_counter()
        if self.steps >= WARM:
            self._rows += self._drawn.distinct[self.steps % BATCHES]
        self.steps += 1
        return self.steps - 1

    def _meet(self) -> None:
        (self._folder / f"warm-{self._trainer}").touch()
        until_s = time.monotonic() + MEETING_S
        while len(list(self._folder.glob("warm-*"))) < self._trainers:
            if time.monotonic() > until_s:
                raise SystemExit("the other trainers have not warmed up")
            time.sleep(0.01)

    def rows_per_s(self) -> float:
        """Distinct rows that the counted steps have pulled and pushed, a second."""
        return self._rows / (time.perf_counter() - self._began_s)


# -- the server ------------------------------------------------------------------------------------------------


class Rows(torch.nn.Module):  # type: ignore[misc]
    """The rows, and a step of them under a lock."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
        torch.nn.init.uniform_(self.bag.weight, -LIMIT, LIMIT)
        self._lock = threading.Lock()

    @functools.cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.parameters(), lr=RATE, eps=EPS)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """(n, WIDTH) rows of (n, 1) keys."""
        found: torch.Tensor = self.bag(keys)
        return found

    def read(self, keys: torch.Tensor) -> torch.Tensor:
        """The same, without a graph."""
        with torch.no_grad():
            return self.forward(keys)

    def step(self, keys: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adagrad's step by (n, WIDTH) gradients of these rows."""
        with self._lock:
            self._optimizer.zero_grad()
            self.forward(keys).backward(gradient)
            self._optimizer.step()

    def references(self) -> list[Any]:
        """References to the parameters, for a `DistributedOptimizer`."""
        from torch.distributed import rpc

        return [rpc.RRef(own) for own in self.parameters()]


@functools.cache
def the_rows(count: int) -> Rows:
    """The rows of this process: RPC calls functions of modules."""
    return Rows(count)


# -- the trainers ----------------------------------------------------------------------------------------------


def by_autograd(rows: Any, drawn: Drawn) -> Callable[[int], None]:
    """A step by distributed autograd."""
    from torch.distributed import autograd
    from torch.distributed.optim import DistributedOptimizer

    optimizer = DistributedOptimizer(torch.optim.Adagrad, rows.rpc_sync().references(), lr=RATE, eps=EPS)

    def step(number: int) -> None:
        with autograd.context() as context:
            found = rows.rpc_sync().forward(drawn.keys(number))
            autograd.backward(context, [drawn.loss(found)])
            optimizer.step(context)

    return step


def by_distinct_keys(rows: Any, drawn: Drawn) -> Callable[[int], None]:
    """A step by two calls, for the distinct keys."""

    def step(number: int) -> None:
        keys, places = torch.unique(drawn.keys(number), return_inverse=True)
        found = rows.rpc_sync().read(keys.view(-1, 1)).requires_grad_()
        drawn.loss(torch.nn.functional.embedding(places.view(-1), found)).backward()
        rows.rpc_sync().step(keys.view(-1, 1), found.grad)

    return step


WAYS: dict[str, Callable[[Any, Drawn], Callable[[int], None]]] = {
    "autograd": by_autograd,
    "distinct": by_distinct_keys,
}


TRANSPORTS: dict[str, dict[str, list[str]]] = {
    "shared memory": {},
    "TCP": {"_transports": ["uv"], "_channels": ["basic"]},
}
"""Options of TensorPipe's backend: without one it prefers shared memory and reads of another process's memory."""


def _rank(
    rank: int, meeting: str, way: str, by: str, count: int, trainers: int, steps: int, folder: str, took: Any
) -> None:
    """A trainer; the last rank is the server."""
    from torch.distributed import rpc

    torch.set_num_threads(1)
    if rank == trainers:
        the_rows(count)  # once, before two trainers ask for them at a time
    threads = 2 * trainers
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting, num_worker_threads=threads, **TRANSPORTS[by])
    rpc.init_rpc(str(rank), rank=rank, world_size=trainers + 1, rpc_backend_options=options)
    if rank < trainers:
        drawn = Drawn(count, rank)
        clock = Clock(drawn, Path(folder), rank, trainers)
        step = WAYS[way](rpc.remote(str(trainers), the_rows, (count,)), drawn)
        for _ in range(steps):
            step(clock.begin_step())
        took.put(clock.rows_per_s())
    rpc.shutdown()


def main() -> None:
    """Run one way."""
    way, by, *numbers = sys.argv[1:]
    rows, trainers, steps = map(int, numbers)
    with tempfile.TemporaryDirectory() as folder:
        found = spawned(_rank, trainers + 1, trainers, way, by, rows, trainers, steps, folder)
    print(json.dumps({"rows_per_s": sum(found)}))


if __name__ == "__main__":
    main()
