"""What does not go together with a job, and that integrations are imported on first use."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dbelief.core.lease import DataLease
from dbelief.errors import ModelError, UserError
from dbelief.job import Job
from dbelief.script.drawn import DrawnBatches

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytest.importorskip("accelerate", reason="the trainers extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.integrations.framework_sync import FrameworkSync  # noqa: E402  (after the check for torch)

MODEL = torch.nn.Linear(2, 1)


def job_of(strategy: dict[str, Any], fraction: float = 0.0, total: int | None = 100) -> Any:
    """What integrations use of a `ScriptJob`, without a coordinator."""
    job = Job.model_validate(
        {"name": "j", "model": {"source": "script"}, "data": {"source": "script", "train": 8}, "strategy": strategy,
         "limits": {"epochs": 1}}
    )  # fmt: skip
    progress = SimpleNamespace(fraction=fraction, total=total)
    return SimpleNamespace(job=job, replica=0, over=False, progress=progress, membership=SimpleNamespace(drawn=None))


ADD = {"name": "downpour", "rule": {"name": "add"}}


def arguments(folder: Any, **more: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **more)


def trainer_of(job: Any, folder: Any, **more: Any) -> Any:
    from dbelief.integrations import JobTrainer

    return JobTrainer(job, model=MODEL, args=arguments(folder, **more), eval_dataset=[0])


def test_they_are_imported_on_first_use() -> None:
    code = (
        "import sys, dbelief.integrations as i; assert not {'torch', 'transformers', 'lightning'} & {*sys.modules}; "
        "i.JobTrainer, i.JobCallback, i.AccelerateSync"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rule_of_the_shards_is_refused() -> None:
    job = job_of({"name": "downpour", "rule": {"name": "sgd", "rate": 0.1}})
    with pytest.raises(ModelError, match="strategy downpour has a rule with which the shards make them"):
        FrameworkSync(job, MODEL, "Lightning")


def synced(*leases: int) -> FrameworkSync:
    """Of what is drawn in two parts, without a member."""
    sync = object.__new__(FrameworkSync)
    sync._drawn, sync._framework, sync._shares = DrawnBatches(), "Lightning", []
    for number, samples in enumerate(leases):
        sync._drawn.receive(DataLease(number + 1, 0, 0, samples, 0))
        sync._drawn.draw(samples, 2)
    return sync


def test_a_loader_of_other_samples_is_refused() -> None:
    with pytest.raises(UserError, match=r"not the job's: make the loader with batch_sampler=job\.sampler"):
        synced().add(1.0)


def test_another_accumulation_is_refused() -> None:
    sync = synced(8)
    sync.check_accumulation(2)
    with pytest.raises(UserError, match=r"accumulates 4 batches for a step, and the sampler gives 2"):
        sync.check_accumulation(4)


def test_a_steps_loss_and_samples_are_those_of_its_batches() -> None:
    sync, steps = synced(8, 5), list[tuple[Any, int]]()

    def step(loss: Any, samples: int) -> None:
        steps.append((loss, samples))
        sync._drawn.step(samples)

    sync.sync = SimpleNamespace(step=step)  # type: ignore[assignment]
    for share in (0.5, 1.5, None, None):
        if sync.add(share):
            sync.step()
    assert steps == [(2.0, 8), (2.0, 5)], "a step without a loss has the one before"


@pytest.mark.parametrize("name", ["load_best_model_at_end", "auto_find_batch_size"])
def test_transformers_arguments_of_one_replica_alone(name: str, tmp_path: Any) -> None:
    with pytest.raises(UserError, match=name):
        trainer_of(job_of(ADD), tmp_path, eval_strategy="epoch", save_strategy="epoch", **{name: True})


def test_transformers_does_not_resume(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="dbelief run --resume"):
        trainer_of(job_of(ADD), tmp_path).train(resume_from_checkpoint="there")


@pytest.mark.parametrize(("fraction", "rate"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0)])
def test_transformers_rate_follows_the_jobs_progress(fraction: float, rate: float, tmp_path: Any) -> None:
    trainer = trainer_of(job_of(ADD, fraction), tmp_path, learning_rate=1.0)
    trainer.create_optimizer()
    scheduler = trainer.create_scheduler(100)
    for _ in range(3):
        trainer.optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr()[0] == pytest.approx(rate), "whatever number of steps this replica has made"


def test_transformers_rate_without_an_end(tmp_path: Any) -> None:
    trainer = trainer_of(job_of(ADD, total=None), tmp_path)
    trainer.create_optimizer()
    with pytest.raises(UserError, match="linear needs an end, and the job has no limit of samples"):
        trainer.create_scheduler(100)
    trainer = trainer_of(job_of(ADD, total=None), tmp_path, lr_scheduler_type="constant_with_warmup")
    trainer.create_optimizer()
    assert trainer.create_scheduler(100) is trainer.lr_scheduler


@pytest.mark.parametrize(
    ("world", "callback", "message"),
    [(2, None, "Lightning runs 2 processes"), (1, "EarlyStopping", "EarlyStopping would end this replica alone")],
)
def test_lightning_of_several_processes_or_with_an_end_of_its_own(world: int, callback: Any, message: str) -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    from dbelief.integrations import JobCallback

    trainer: Any = SimpleNamespace(world_size=world, callbacks=[EarlyStopping("loss")] if callback else [])
    with pytest.raises(UserError, match=message):
        JobCallback(job_of(ADD)).setup(trainer, MODEL, "fit")


def test_lightning_does_not_resume() -> None:
    from dbelief.integrations import JobCallback

    with pytest.raises(UserError, match="dbelief run --resume"):
        JobCallback(job_of(ADD)).on_load_checkpoint(None, None, {})


def test_accelerate_of_several_processes() -> None:
    from dbelief.integrations import AccelerateSync

    accelerator: Any = SimpleNamespace(num_processes=2)
    with pytest.raises(UserError, match="by dbelief run, not by accelerate launch"):
        AccelerateSync(job_of(ADD), accelerator, MODEL)


def test_accelerate_does_not_load_a_state() -> None:
    from dbelief.integrations.accelerate_sync import _refuse

    with pytest.raises(UserError, match=r"load_state\('there'\)"):
        _refuse([], "there")
