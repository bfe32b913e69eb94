"""A parameter server of torch RPC, as torch's tutorial of batch RPC has it.

The server, rank 0, answers the workers once it has the gradients of all of them. It starts the workers' loops by RPC.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from torch.distributed import rpc

from benchmarks.peers.trainers.work import Given, Reports, Work, network

LONG_S = 1e6


# -- user --
class ParameterServer:
    """Parameters and their optimizer."""

    def __init__(self, workers: int, rate: float) -> None:
        self.model, self.workers, self.came = network(), workers, 0
        self.lock, self.future = threading.Lock(), torch.futures.Future()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        for values in self.model.parameters():
            values.grad = torch.zeros_like(values)
        self.reports = Reports(Given(), "server")  # measured
        self.held: list[Any] = []  # measured
        self.reports.write(state=0)  # measured

    def get_model(self) -> Any:
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update(server: Any, gradients: Any, one: Any) -> Any:
        self = server.local_value()
        with self.lock:
            for values, gradient in zip(self.model.parameters(), gradients, strict=True):
                values.grad += gradient
            self.came += 1
            future = self.future
            self.held.append(one)  # measured
            if self.came >= self.workers:
                for values in self.model.parameters():
                    values.grad /= self.workers
                self.came = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self._report()  # measured
                future.set_result(self.model)
                self.future = torch.futures.Future()
        return future

    # -- end --

    def _report(self) -> None:
        for one in self.held:
            self.reports.write(applied=one)
        self.held = []
        self.reports.keep(self.model)


# -- user --
def train(server: Any) -> None:
    """The loop of a worker."""
    work = Work(rpc.get_worker_info().id - 1)
    model = server.rpc_sync().get_model()
    for images, digits in work.batches():
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        gradients = [values.grad for values in model.parameters()]
        model = rpc.rpc_sync(server.owner(), ParameterServer.update, args=(server, gradients, work.trained()))


def main() -> None:
    """Be the server, or a worker; RANK and the like are in the environment."""
    rank, given = int(os.environ["RANK"]), Given()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=LONG_S, **given.more["rpc"])
    names = ["server", *(f"worker-{number}" for number in range(given.workers))]
    rpc.init_rpc(names[rank], rank=rank, world_size=len(names), rpc_backend_options=options)
    if rank == 0:
        server = rpc.RRef(ParameterServer(given.workers, given.rate))
        torch.futures.wait_all([rpc.rpc_async(name, train, args=(server,), timeout=LONG_S) for name in names[1:]])
    rpc.shutdown()
    # -- end --
