"""torch without any other: one process."""

from __future__ import annotations

from benchmarks.peers.trainers.work import Work, network


def main() -> None:
    """Train until SIGKILL."""
    import torch

    work = Work(0)
    work.reports.write(state=0)
    # -- user --
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.given.rate)
    for images, digits in work.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        work.done(model)  # measured
    # -- end --
