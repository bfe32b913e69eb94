"""Ray Train's TorchTrainer: DistributedDataParallel in workers that Ray starts, with checkpoints that it keeps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from benchmarks.peers.trainers.work import Given, Work, network


# -- user --
def train(config: dict[str, Any]) -> None:
    """The loop of a worker, from the newest checkpoint."""
    context = ray.train.get_context()
    work = Work(context.get_world_rank())
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=config["rate"])
    samples = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            kept = torch.load(Path(folder) / "state.pt")
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        samples = kept["samples"]
    if work.rank == 0:  # measured
        work.reports.write(state=samples)  # measured
    model = ray.train.torch.prepare_model(net)
    for step, (images, digits) in enumerate(work.batches(), start=1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        work.done(net)  # measured
        samples += len(digits) * context.get_world_size()
        if step % config["checkpoint_steps"] == 0:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if work.rank == 0:
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "samples": samples}
                    torch.save(state, Path(folder) / "state.pt")
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"samples": samples}, checkpoint=checkpoint)


def main() -> None:
    """Drive until SIGKILL."""
    given = Given()
    ray.init(**given.more["ray"])
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"rate": given.rate, "checkpoint_steps": given.more["checkpoint_steps"]},
        scaling_config=ray.train.ScalingConfig(num_workers=given.workers),
        run_config=ray.train.RunConfig(
            name="peers",
            storage_path=str(given.folder / "storage"),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            failure_config=ray.train.FailureConfig(max_failures=-1),
        ),
    )
    trainer.fit()
    # -- end --
