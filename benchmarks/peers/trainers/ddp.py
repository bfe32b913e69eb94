"""torch's DistributedDataParallel over gloo, a process for each rank, without checkpoints."""

from __future__ import annotations

import os

from benchmarks.peers.trainers.work import Work, network


def main() -> None:
    """Train until SIGKILL; RANK and the like are in the environment."""
    import torch

    work = Work(int(os.environ["RANK"]))
    if work.rank == 0:
        work.reports.write(state=0)
    # -- user --
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.given.rate)
    for images, digits in work.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        work.done(model)  # measured
    torch.distributed.destroy_process_group()
    # -- end --
