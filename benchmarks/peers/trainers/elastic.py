"""A rank under torchrun: DistributedDataParallel over gloo, and a checkpoint that a group formed again starts from."""

from __future__ import annotations

import os
import time

from benchmarks.peers.trainers.work import Work, network


def main() -> None:
    """Train from the newest checkpoint until SIGKILL."""
    import torch

    work = Work(int(os.environ["RANK"]))
    every_s, file = work.given.more["checkpoint_s"], work.given.folder / "checkpoint.pt"
    # -- user --
    torch.distributed.init_process_group("gloo")
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=work.given.rate)
    samples = 0
    if file.exists():
        kept = torch.load(file)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        samples = kept["samples"]
    if work.rank == 0:  # measured
        work.reports.write(state=samples)  # measured
    model = torch.nn.parallel.DistributedDataParallel(net)
    saved_s = time.monotonic()
    for images, digits in work.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        work.done(net)  # measured
        samples += len(digits) * torch.distributed.get_world_size()
        if work.rank == 0 and time.monotonic() - saved_s >= every_s:
            saved_s = time.monotonic()
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "samples": samples}
            torch.save(state, file.with_suffix(".part"))
            os.replace(file.with_suffix(".part"), file)
    torch.distributed.destroy_process_group()
    # -- end --
