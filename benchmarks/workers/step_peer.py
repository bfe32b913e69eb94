"""The same step by others: torch alone, torch DDP, and a parameter server of torch RPC or Ray, as in their manuals.

    python step_peer.py WAY DATA EPOCHS WORKERS BATCH

It runs in an environment of its own, which has torch, and Ray for "ray", and not dbelief. It prints the samples of all
workers and the seconds from the first step to the last, as JSON. A parameter server has the parameters and Adagrad; a
worker sends its gradient and gets the parameters in one call, without waiting for others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.faults.churn_torch_trainer import images

TRAIN, RATE = 55_000, 0.03


def net() -> Any:
    """The network: 784-256-10."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def batches(data: str, epochs: int, workers: int, rank: int, size: int) -> Iterator[tuple[Any, Any]]:
    """One worker's mini-batches."""
    import torch

    pixels, digits = (torch.from_numpy(values[:TRAIN]) for values in images(Path(data), "train"))
    draw = torch.Generator().manual_seed(rank)
    for _ in range(epochs * TRAIN // (size * workers)):
        rows = torch.randint(TRAIN, (size,), generator=draw)
        yield pixels[rows], digits[rows]


def loss_of(model: Any, batch: tuple[Any, Any]) -> Any:
    """Loss of a mini-batch."""
    import torch

    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert torch.isfinite(loss)
    return loss


# -- torch alone, and DDP --------------------------------------------------------------------------------------


def train(model: Any, data: str, epochs: int, workers: int, rank: int, size: int) -> float:
    """Train with Adagrad; returns the seconds."""
    import torch

    optimizer, began_s = torch.optim.Adagrad(model.parameters(), lr=RATE), 0.0
    for batch in batches(data, epochs, workers, rank, size):
        began_s = began_s or time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return time.perf_counter() - began_s


def alone(data: str, epochs: int, _: int, size: int) -> float:
    """One process."""
    return train(net(), data, epochs, 1, 0, size)


def _ddp_rank(rank: int, meeting: str, data: str, epochs: int, workers: int, size: int, took: Any) -> None:
    import torch

    model = net()
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=workers)
    took.put(train(torch.nn.parallel.DistributedDataParallel(model), data, epochs, workers, rank, size))
    torch.distributed.barrier()  # a rank whose peers have gone may abort
    torch.distributed.destroy_process_group()


def ddp(data: str, epochs: int, workers: int, size: int) -> float:
    """Data parallelism by all-reduce over gloo."""
    return max(spawned(_ddp_rank, workers, workers, data, epochs, workers, size))


def spawned(run: Callable[..., None], count: int, answers: int, *words: Any) -> list[float]:
    """So many numbers that processes of `run` put on a queue."""
    import torch.multiprocessing as processes

    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        took = processes.get_context("spawn").SimpleQueue()
        processes.spawn(run, ((Path(folder) / "meeting").as_uri(), *words, took), count)
        return [took.get() for _ in range(answers)]


# -- parameter servers -----------------------------------------------------------------------------------------


class Server:
    """Parameters and Adagrad: a gradient in, the parameters out."""

    def __init__(self) -> None:
        import torch

        self.model = net()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=RATE)

    def update(self, gradient: Any) -> Any:
        """Apply a flat gradient, and return the flat parameters; without one only return them."""
        import torch

        if gradient is not None:
            for values, part in zip(self.model.parameters(), parts(self.model, torch.as_tensor(gradient)), strict=True):
                values.grad = part
            self.optimizer.step()
        return torch.cat([values.detach().reshape(-1) for values in self.model.parameters()])


def parts(model: Any, flat: Any) -> list[Any]:
    """Views of a flat vector in the shapes of the parameters."""
    split = flat.split([values.numel() for values in model.parameters()])
    return [part.view_as(values) for part, values in zip(split, model.parameters(), strict=True)]


def work(update: Callable[[Any], Any], data: str, epochs: int, workers: int, rank: int, size: int) -> float:
    """Train against a server; returns the seconds."""
    import torch

    model, began_s = net(), 0.0
    flat = update(None)
    for batch in batches(data, epochs, workers, rank, size):
        began_s = began_s or time.perf_counter()
        with torch.no_grad():
            for values, part in zip(model.parameters(), parts(model, flat), strict=True):
                values.copy_(part)
        gradients = torch.autograd.grad(loss_of(model, batch), list(model.parameters()))
        flat = update(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return time.perf_counter() - began_s


_server: Server | None = None


def _update(gradient: Any) -> Any:
    global _server
    _server = _server or Server()
    return _server.update(gradient)


def _rpc_rank(rank: int, meeting: str, data: str, epochs: int, workers: int, size: int, took: Any) -> None:
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting, num_worker_threads=workers)
    rpc.init_rpc(str(rank), rank=rank, world_size=workers + 1, rpc_backend_options=options)
    if rank < workers:
        server = str(workers)
        took.put(work(lambda sent: rpc.rpc_sync(server, _update, (sent,)), data, epochs, workers, rank, size))
    rpc.shutdown()


def torch_rpc(data: str, epochs: int, workers: int, size: int) -> float:
    """A parameter server by torch RPC; updates of two workers may run at once, as in its tutorial."""
    return max(spawned(_rpc_rank, workers + 1, workers, data, epochs, workers, size))


def with_ray(data: str, epochs: int, workers: int, size: int) -> float:
    """A parameter server and workers as Ray's actors, as its example has them."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    import ray

    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")

    class Numbers(Server):
        def update(self, gradient: Any) -> Any:
            return super().update(gradient).numpy()

    server = ray.remote(num_cpus=1)(Numbers).remote()

    def run(rank: int) -> float:
        import torch

        def update(gradient: Any) -> Any:
            sent = None if gradient is None else gradient.numpy()
            return torch.from_numpy(ray.get(server.update.remote(sent)).copy())

        return work(update, data, epochs, workers, rank, size)

    took = ray.get([ray.remote(num_cpus=1)(run).remote(rank) for rank in range(workers)])
    ray.shutdown()
    return float(max(took))


WAYS = {"torch": alone, "torch-ddp": ddp, "torch-rpc": torch_rpc, "ray": with_ray}


def main() -> None:
    """Run one way."""
    way, data, *numbers = sys.argv[1:]
    epochs, workers, size = map(int, numbers)
    took_s = WAYS[way](data, epochs, workers, size)
    each = 1 if way == "torch" else workers
    samples = epochs * TRAIN // (size * each) * size * each
    print(json.dumps({"samples": samples, "wall_s": took_s}))


if __name__ == "__main__":
    main()
