"""One rank of the DDP job that `torchrun` restarts: MNIST, 784-256-10, gloo, a checkpoint on disk every few seconds.

A group that is formed again may have another number of ranks: the checkpoint counts samples.

It runs in a virtual environment of its own, which has torch and not dbelief. `main` takes its options as one JSON
object in the environment variable `CHURN`: `folder` (of the checkpoint, the progress, the result and the ranks' pids),
`data` (of the IDX files), `batch`, `rate`, `seed`, `wait_s` (before each gradient), `checkpoint_s` (between two
checkpoints), and either `samples` or `seconds`. With `HOST` in the environment the file of its pid has that name.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

LOOK_STEPS = 20


def images(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images of a part ("train", "t10k") as float32 rows in 0 to 1, and their digits."""
    pixels = np.frombuffer(content(folder / f"{part}-images-idx3-ubyte"), np.uint8, offset=16)
    digits = np.frombuffer(content(folder / f"{part}-labels-idx1-ubyte"), np.uint8, offset=8)
    return pixels.reshape(len(digits), -1).astype(np.float32) / 255, digits.astype(np.int64)


def content(path: Path) -> bytes:
    """The bytes of a file that may be compressed."""
    return path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())


def main() -> None:
    """Train from the newest checkpoint to the end."""
    given = json.loads(os.environ["CHURN"])
    folder, rank = Path(given["folder"]), int(os.environ["RANK"])
    (folder / f"{os.environ.get('HOST', f'rank-{rank}')}.pid").write_text(str(os.getpid()))

    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(given["seed"])
    net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.Adagrad(net.parameters(), lr=given["rate"])
    samples, file = 0, folder / "checkpoint.pt"
    if file.exists():
        kept = torch.load(file)
        samples = kept["samples"]
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
    samples = train(torch, given, net, optimizer, samples, rank)
    if rank == 0:
        pixels, digits = map(torch.from_numpy, images(Path(given["data"]), "t10k"))
        with torch.no_grad():
            accuracy = float((net(pixels).argmax(1) == digits).float().mean())
        part = folder / "result.part"
        part.write_text(json.dumps({"test_accuracy": accuracy, "samples": samples}))
        part.replace(folder / "result.json")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train(torch: Any, given: dict[str, Any], net: Any, optimizer: Any, samples: int, rank: int) -> int:
    """Train until the limit; the samples of all ranks, with those before."""
    folder, more = Path(given["folder"]), given["batch"] * torch.distributed.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(net)
    pixels, digits = map(torch.from_numpy, images(Path(given["data"]), "train"))
    rng = np.random.default_rng([given["seed"], rank, samples])
    progress = os.open(folder / "progress", os.O_RDWR | os.O_CREAT)
    wanted = given.get("samples")
    ends_s = time.monotonic() + given.get("seconds", float("inf"))
    saved_s = time.monotonic()
    over, step = torch.zeros(1), 0
    while wanted is None or samples < wanted:
        chosen = torch.from_numpy(rng.integers(0, len(digits), given["batch"]))
        optimizer.zero_grad()
        time.sleep(given["wait_s"])
        torch.nn.functional.cross_entropy(model(pixels[chosen]), digits[chosen]).backward()
        optimizer.step()
        samples, step = samples + more, step + 1
        if rank == 0:
            os.pwrite(progress, samples.to_bytes(8, "little"), 0)
            if time.monotonic() - saved_s >= given["checkpoint_s"]:
                saved_s = time.monotonic()
                save(torch, folder, {"samples": samples, "net": net.state_dict(), "optimizer": optimizer.state_dict()})
        if wanted is None and step % LOOK_STEPS == 0:
            over[0] = float(time.monotonic() > ends_s)
            torch.distributed.broadcast(over, 0)
            if over[0]:
                break
    return samples


def save(torch: Any, folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint."""
    torch.save(state, folder / "checkpoint.part")
    os.replace(folder / "checkpoint.part", folder / "checkpoint.pt")
