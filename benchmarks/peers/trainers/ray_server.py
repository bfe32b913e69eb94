"""Ray's example of an asynchronous parameter server: actors, and a driver that hands each gradient on.

Actors are restarted, and their calls repeated, as Ray's page on fault tolerance has it (`max_restarts`,
`max_task_retries`); the example itself has neither.
"""

from __future__ import annotations

from typing import Any

import ray
import torch

from benchmarks.peers.trainers.work import Given, Reports, Work, network


# -- user --
@ray.remote(max_restarts=-1, max_task_retries=-1)
class ParameterServer:
    """Parameters and their optimizer."""

    def __init__(self, rate: float) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.reports = Reports(Given(), "server")  # measured
        self.reports.write(state=0)  # measured

    def apply_gradients(self, computed: Any) -> Any:
        gradients, one = computed
        self.optimizer.zero_grad()
        for values, gradient in zip(self.model.parameters(), gradients, strict=True):
            values.grad = torch.from_numpy(gradient.copy())
        self.optimizer.step()
        self.reports.write(applied=one)  # measured
        self.reports.keep(self.model)  # measured
        return self.get_weights()

    def get_weights(self) -> Any:
        return {name: values.numpy() for name, values in self.model.state_dict().items()}


@ray.remote(max_restarts=-1, max_task_retries=-1)
class DataWorker:
    """One worker."""

    def __init__(self, rank: int) -> None:
        self.model, self.work = network(), Work(rank)
        self.batches = self.work.batches()

    def compute_gradients(self, weights: Any) -> Any:
        self.model.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in weights.items()})
        images, digits = next(self.batches)
        self.model.zero_grad()
        torch.nn.functional.cross_entropy(self.model(images), digits).backward()
        return [values.grad.numpy() for values in self.model.parameters()], self.work.trained()


def main() -> None:
    """Drive the actors until SIGKILL."""
    given = Given()
    ray.init(**given.more["ray"])
    server = ParameterServer.options(**_place(given, "server")).remote(given.rate)  # type: ignore[attr-defined]
    gradients: dict[Any, Any] = {}
    weights = server.get_weights.remote()
    for rank in range(given.workers):
        worker = DataWorker.options(**_place(given, "worker")).remote(rank)  # type: ignore[attr-defined]
        gradients[worker.compute_gradients.remote(weights)] = worker
    while True:
        ready, _ = ray.wait(list(gradients))
        worker = gradients.pop(ready[0])
        weights = server.apply_gradients.remote(ready[0])
        gradients[worker.compute_gradients.remote(weights)] = worker
    # -- end --


def _place(given: Given, role: str) -> dict[str, Any]:
    """Where Ray has several nodes, the one of the server, or one for each worker."""
    return {"num_cpus": 0, "resources": {role: 1}} if given.more["nodes"] else {}
