"""torchft: a replica group of one process, whose gradients are averaged with those of all groups in each step."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from benchmarks.peers.trainers.work import Work, network

HOST = os.environ.get("HOST", "127.0.0.1")


def main() -> None:
    """Train until SIGKILL; REPLICA_GROUP_ID and TORCHFT_LIGHTHOUSE are in the environment."""
    import torch

    work = Work(int(os.environ["REPLICA_GROUP_ID"]))
    # -- user --
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=work.given.rate)

    def load_state_dict(state: dict[str, Any]) -> None:
        net.load_state_dict(state["net"])
        inner.load_state_dict(state["optimizer"])

    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load_state_dict,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        replica_id=f"worker-{work.rank}",
        hostname=HOST,
    )
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, inner)
    for images, digits in work.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        step = manager.current_step()  # measured
        optimizer.step()
        report(work, manager, net, step)  # measured
    # -- end --


def report(work: Work, manager: Any, net: Any, step: int) -> None:
    """Report a step, which is in the model where it was committed with this group in it."""
    if manager.current_step() == step + 1 and manager.is_participating():
        if work.samples == 0:
            before = manager.batches_committed() - manager.num_participants()
            work.reports.write(state=before * work.given.batch)
        work.done(net)
    else:
        work.trained()
