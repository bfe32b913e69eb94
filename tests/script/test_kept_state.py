"""State beside the module: a script that is killed, or whose job is resumed, goes on as the plain program does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dbelief.checkpoint.state_file import read_state
from dbelief.errors import DataError, ModelError, UserError
from tests.processes.conftest import DBELIEF, DEADLINE_S

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.torch.kept_state import KeptState, check_kept  # noqa: E402  (after the check for torch)

KEPT = Path(__file__).with_name("kept.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(KEPT.parents[2])}
JOB = """
name: kept
model: {{source: script}}
data: {{source: script, train: 400}}
strategy: {strategy}
limits: {{epochs: {epochs}}}
snapshots: {{every_s: 0.001}}
deadlines: {{beat_s: 2, lease_s: 1}}
seed: 3
"""
ROUNDS = "{name: diloco, batch: 20, steps: 4, lease: 160, outer: {name: sgd, rate: 1}}"
TRAVELS = "{name: diloco, batch: 20, steps: 4, lease: 160, delay: 2, outer: {name: sgd, rate: 1}}"
ADDS = "{name: downpour, batch: 20, n_push: 4, n_fetch: 4, rule: {name: add}, warm_start: null}"


def run(folder: Path, strategy: str, epochs: int, *words: str, resume: bool = False) -> str:
    """Run the script in a job; what it and the launcher printed."""
    (folder / "job.yaml").write_text(JOB.format(strategy=strategy, epochs=epochs))
    command = [*DBELIEF, "run", "--quiet", "--job", "job.yaml", *["--resume"] * resume, str(KEPT), "script"]
    command += [str(folder), str(epochs), *words]
    ended = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr + (folder / "runs/kept/logs/worker-0.log").read_text()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the plain program ends with after two epochs."""
    folder = tmp_path_factory.mktemp("plain")
    words = [sys.executable, str(KEPT), "plain", str(folder), "2"]
    subprocess.run(words, check=True, cwd=folder, env=ENVIRONMENT)
    outcome: dict[str, Any] = torch.load(folder / "plain.pt")
    return outcome


def farthest(folder: Path, wanted: dict[str, Any]) -> float:
    """Greatest difference between the weights, and their averages, of the script and those of the plain program."""
    found = torch.load(folder / "script.pt")
    pairs = [(found[part][name], own) for part in ("model", "ema") for name, own in wanted[part].items()]
    return max(float((one - other).abs().max()) for one, other in pairs)


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "killed"), [(ROUNDS, 18), (TRAVELS, 19), (ADDS, 18)])
def test_a_killed_script_goes_on_as_the_plain_program(
    strategy: str, killed: int, wanted: dict[str, Any], tmp_path: Path
) -> None:
    """The steps since its last exchange are lost, and made again."""
    said = run(tmp_path, strategy, 2, f"kill={killed}")
    assert "state of replica 0 put back: argument 1, argument 2, ema" in said
    assert farthest(tmp_path, wanted) < 1e-5
    assert torch.load(tmp_path / "script.pt")["rate"] == pytest.approx(wanted["rate"])


@pytest.mark.processes
def test_without_it_the_moments_are_lost(wanted: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path, ROUNDS, 2, "kill=18", "keep=0")
    assert farthest(tmp_path, wanted) > 1e-3


@pytest.mark.processes
def test_a_resumed_job_goes_on_as_the_plain_program(wanted: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path, ROUNDS, 1)
    assert "put back" in run(tmp_path, ROUNDS, 2, resume=True)
    assert farthest(tmp_path, wanted) < 1e-5


# -- without processes -----------------------------------------------------------------------------------------------


class Loop:
    """A script's objects, and their file, for a push of each step."""

    def __init__(self, folder: Path, run: int = 7, every_s: float = 0.0, kind: str = "Adam", **more: Any) -> None:
        self.weight = torch.nn.Parameter(torch.ones(more.pop("size", 3)))
        self.optimizer = getattr(torch.optim, kind)([self.weight], lr=0.1)
        objects = {"argument 1": self.optimizer} | {name: make(self.optimizer) for name, make in more.items()}
        self.state = KeptState(objects, folder / "replica-0.safetensors", run, every_s, 0)
        self.pushes = 0

    def step(self) -> None:
        self.weight.sum().backward()
        self.optimizer.step()

    def push(self, answered: bool = True) -> None:
        self.pushes += 1
        self.state.exchanged(self.pushes, answered)
        self.state._wait(60.0)

    def steps_kept(self) -> int:
        """Steps of the state in the file."""
        _, states = read_state(self.state._path, lambda array: array)
        return int(states["argument 1"]["state"][0]["step"])


def test_the_state_is_that_of_the_last_answered_exchange(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.step()
    loop.push()
    loop.step()
    loop.push(answered=False)
    assert loop.steps_kept() == 1
    loop.step()  # while the second exchange travels
    loop.state.exchanged(loop.pushes, answered=True)
    loop.state._wait(60.0)
    assert loop.steps_kept() == 2
    loop.push()
    loop.state.end(60.0)
    assert loop.steps_kept() == 3


def test_steps_after_the_last_exchange_are_not_kept_at_the_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, every_s=3600.0)
    for _ in range(2):
        loop.step()
        loop.push()
    loop.step()
    assert loop.steps_kept() == 1, "the next copy is due in an hour"
    loop.state.end(60.0)
    assert loop.steps_kept() == 1


def kept(folder: Path, **more: Any) -> Loop:
    """One whose state is kept after a step."""
    loop = Loop(folder, **more)
    loop.step()
    loop.push()
    loop.state.end(60.0)
    return loop


def test_the_state_of_another_run_is_replaced(tmp_path: Path) -> None:
    kept(tmp_path)
    loop = Loop(tmp_path, run=8)
    loop.state.restore(0)
    assert not loop.optimizer.state
    loop = Loop(tmp_path, run=7)
    loop.state.restore(0)
    assert loop.optimizer.state[loop.weight]["step"] == 1


def decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"kind": "SGD"}, "argument 1 is Adam there, and SGD in the script"),
        ({"size": 4}, "argument 1 has parameters of other groups or shapes than in the script"),
        ({"decay": decay}, "holds argument 1, and sync.state got argument 1, decay"),
    ],
)
def test_a_file_of_other_objects_ends_the_script(other: dict[str, Any], message: str, tmp_path: Path) -> None:
    kept(tmp_path)
    loop = Loop(tmp_path, **other)
    with pytest.raises(ModelError, match=rf"replica-0\.safetensors: {message}; give .* or remove the file"):
        loop.state.restore(0)
    assert not loop.optimizer.state


def test_with_a_damaged_file_only_optimisers_begin_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both: list[dict[str, Any]] = [{}, {"decay": decay}]
    for more in both:
        path = kept(tmp_path, **more).state._path
        path.write_bytes(path.read_bytes()[:-5])
        loop = Loop(tmp_path, **more)
        if more:
            with pytest.raises(
                DataError, match=r"replica-0\.safetensors: cannot be read: .* decay must not begin anew"
            ):
                loop.state.restore(0)
        else:
            loop.state.restore(0)
            assert "replica-0.safetensors: cannot be read: " in capsys.readouterr().err
        assert not loop.optimizer.state


def test_what_cannot_be_written_is_said_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = kept(tmp_path / "none")
    assert f"{loop.state._path}: cannot be written: No such file or directory" in capsys.readouterr().err


def test_what_is_not_the_scripts_is_refused() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    objects = {"argument 1": optimizer, "decay": decay(optimizer), "ema": torch.optim.swa_utils.AveragedModel(module)}
    check_kept(objects, module, rule=None)
    check_kept({"ema": objects["ema"]}, module, rule="sgd")
    for name, message in (("argument 1", "is an optimiser, whose state the shards keep"), ("decay", "is a scheduler,")):
        with pytest.raises(UserError, match=f"sync.state: {name} {message}"):
            check_kept({name: objects[name]}, module, rule="sgd")
    with pytest.raises(UserError, match="net has parameters of the job's module"):
        check_kept({"net": torch.nn.Sequential(module)}, module, rule=None)
    with pytest.raises(UserError, match="no object is given"):
        check_kept({}, module, rule=None)
    with pytest.raises(UserError, match="rate is a float, without state_dict"):
        check_kept({"rate": 0.1}, module, rule=None)


def test_bfloat16_comes_back_to_the_bit(tmp_path: Path) -> None:
    def half(optimizer: Any) -> Any:
        torch.manual_seed(1)
        return torch.nn.Linear(2, 2).to(torch.bfloat16)

    wanted = kept(tmp_path, ema=half).state._objects["ema"].state_dict()
    loop = Loop(tmp_path, ema=half)
    ema = loop.state._objects["ema"]
    torch.nn.init.zeros_(ema.weight)
    loop.state.restore(0)
    assert torch.equal(ema.weight, wanted["weight"])
