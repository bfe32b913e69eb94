"""hivemind: a peer whose optimizer averages the parameters with others', as hivemind's quick start has it.

The target batch is ten times that of the quick start: peers learn of each other's samples once in half a second, and
with an epoch of less than that they make one of nearly every step.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.trainers.work import Work, network

START_S = 60.0


def initial_peer(folder: Path) -> list[str]:
    """Address of the first peer of the DHT, which it prints."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        log = (folder / "dht.log").read_text() if (folder / "dht.log").exists() else ""
        if found := re.findall(r"/ip4/[\d.]+/tcp/\d+/p2p/\w+", log):
            return found[:1]
        time.sleep(0.1)
    raise TimeoutError(f"no address of the first peer after {START_S:g} s")


def main() -> None:
    """Train until SIGKILL."""
    import torch

    work, host = Work(int(os.environ["RANK"])), os.environ.get("HOST", "127.0.0.1")
    if work.rank == 0:
        work.reports.write(state=0)
    peers = initial_peer(work.given.folder)
    # -- user --
    import hivemind

    model = network()
    dht = hivemind.DHT(initial_peers=peers, host_maddrs=[f"/ip4/{host}/tcp/0"], start=True)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="peers",
        batch_size_per_step=work.given.batch,
        target_batch_size=100_000,
        optimizer=torch.optim.SGD(model.parameters(), lr=work.given.rate),
        use_local_updates=True,
        matchmaking_time=3.0,
        averaging_timeout=10.0,
    )
    optimizer.load_state_from_peers()
    report = Reporter(work, optimizer)  # measured
    for images, digits in work.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        report(model)  # measured
    # -- end --


class Reporter:
    """Reports of a peer: its samples are in the model of all once an epoch has ended."""

    def __init__(self, work: Work, optimizer: Any) -> None:
        self._work, self._optimizer, self._epoch, self._applied = work, optimizer, optimizer.local_epoch, 0

    def __call__(self, model: Any) -> None:
        """Report a step."""
        work = self._work
        work.trained()
        if self._optimizer.local_epoch != self._epoch:
            self._epoch = self._optimizer.local_epoch
            work.reports.write(applied=(work.source, self._applied + 1, work.samples))
            self._applied = work.samples
        if work.rank == 0:
            work.reports.keep(model)
