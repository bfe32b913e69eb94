"""One replica group of the torchft job under churn: MNIST, 784-256-10, DiLoCo over gloo, on CPU.

It needs torchft beside torch, and not dbelief. `main` takes its options as one JSON object in the environment variable
`CHURN`: `folder` (of the counter and the result), `data` (of the IDX files), `batch`, `rate`, `seed`, `wait_s` (before
each gradient), `steps` (of a round), `lighthouse` (its URL), and `name`. It trains until SIGTERM, and then evaluates.
"""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.churn_torch_trainer import images

DEADLINE = timedelta(seconds=20)
HOST = "127.0.0.1"


class Ended(BaseException):
    """The process is to end; no handler of torchft's takes it for a failure."""


def main() -> None:
    """Train, and evaluate at the end."""

    def end(*_: Any) -> None:
        raise Ended

    given = json.loads(os.environ["CHURN"])
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(given["seed"])  # a group that joins fetches the parameters of the others
    net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    signal.signal(signal.SIGTERM, end)  # one that still imports torch has no result
    try:
        train(torch, given, net)
    except Ended:
        pixels, digits = map(torch.from_numpy, images(Path(given["data"]), "t10k"))
        with torch.no_grad():
            accuracy = float((net(pixels).argmax(1) == digits).float().mean())
        part = Path(given["folder"]) / f"{given['name']}.part"
        part.write_text(json.dumps({"test_accuracy": accuracy}))
        part.replace(part.with_suffix(".json"))
        os._exit(0)  # the threads of a manager may wait for peers


def train(torch: Any, given: dict[str, Any], net: Any) -> None:
    """Make rounds without end, and count the samples of each that is committed with this replica in it."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    optimizer = torch.optim.Adagrad(net.parameters(), lr=given["rate"])
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.6, nesterov=True)
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(timeout=DEADLINE),
        load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=DEADLINE,
        quorum_timeout=DEADLINE,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=given["lighthouse"],
        replica_id=given["name"],
        hostname=HOST,
    )
    pixels, digits = map(torch.from_numpy, images(Path(given["data"]), "train"))
    rng = np.random.default_rng([given["seed"], os.getpid()])
    counter = os.open(Path(given["folder"]) / f"{given['name']}.samples", os.O_RDWR | os.O_CREAT)
    counted = int.from_bytes(os.pread(counter, 8, 0), "little")
    delay = given["steps"] // 2
    more = {"fragment_sync_delay": delay, "fragment_update_alpha": 0.5, "use_bucketization": True}
    with DiLoCo(manager, [net], optimizer, outer, sync_every=given["steps"], **more):
        committed = manager.current_step()
        while True:
            for _ in range(given["steps"]):
                chosen = torch.from_numpy(rng.integers(0, len(digits), given["batch"]))
                optimizer.zero_grad()
                time.sleep(given["wait_s"])
                torch.nn.functional.cross_entropy(net(pixels[chosen]), digits[chosen]).backward()
                optimizer.step()
            # By more than one: it has taken the state of the others in the middle of this round.
            if manager.current_step() == committed + 1 and manager.is_participating():
                counted += given["steps"] * given["batch"]
                os.pwrite(counter, counted.to_bytes(8, "little"), 0)
            committed = manager.current_step()
