"""`dbelief report` on the neurons of a run, from its folder alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.errors import DataError, UserError
from dbelief.job import Job, NpzData, parse_job
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.layers.lcn import Lcn
from dbelief.tools.report.neurons import report_neurons
from dbelief.tools.report.selectivity import selectivity
from tests.dbelief.training.test_pretrained import JOB, tensors

OTHERS = {
    "layer": "{autoencoder: {window: 4, block: 2, maps: 3, pool: 2, image: [8, 8, 1]}}",
    "dense": "{layers: [{dense: 10}], loss: softmax_cross_entropy}",
}
BARE = {name.removeprefix("stack1."): values for name, values in tensors(1, 1).items()}


def run(folder: Path, name: str, held: dict[str, np.ndarray], train: int = 2) -> Job:
    """Write the folder of a run that has ended."""
    text = JOB.format(train=train, trained=f"[{folder}/one]", output=folder).replace("name: top", f"name: {name}")
    if name in OTHERS:
        start, end = text.index("model:"), text.index("data:")
        text = f"{text[:start]}model: {OTHERS[name]}\n{text[end:]}"
    (folder / name).mkdir()
    (folder / name / "job.yaml").write_text(text)
    save_file(held, folder / name / "model.safetensors")
    return parse_job(text, folder, name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs: of stack 1, of stack 2 on it, of a layer, and of a network; and labelled images."""
    job = run(tmp_path, "one", tensors(1, 1), train=1)
    run(tmp_path, "top", tensors(2, 2))
    run(tmp_path, "layer", BARE)
    run(tmp_path, "dense", {"w": np.zeros(1, np.float32)})
    digits = load(job.data, tmp_path).train
    assert digits is not None
    some = digits.inputs[np.isin(digits.targets, (0, 1))].astype(np.float32)[:60]
    labels = digits.targets[np.isin(digits.targets, (0, 1))][:60]
    np.savez(tmp_path / "labelled.npz", inputs=some, targets=labels)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("one", ["filters", "stimuli"]), ("top", ["stimuli"]), ("layer", ["filters", "stimuli"]), ("dense", [])],
)
def test_neuron_pictures_of_a_trained_run(name: str, drawn: list[str], folder: Path) -> None:
    pictures = report_neurons(folder / name, folder, "neurons", None)
    assert pictures == [folder / f"{one}.png" for one in drawn]
    assert all(picture.stat().st_size > 0 for picture in pictures)


def test_selectivity_is_of_the_whole_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_neurons(folder / "top", folder, "neurons", folder / "labelled.npz")
    told = capsys.readouterr().out
    stacks = [(Eq1(4, 2, 3, 2), Lcn(1)), (Eq1(2, 1, 2, 2), Lcn())]
    neurons = Neurons((8, 8, 1), stacks, {**tensors(1, 1), **tensors(2, 2)}, select_backend("cpu"))
    split = load(NpzData(source="npz", file="labelled.npz", validation=0, test=0), folder).train
    assert split is not None
    (test,) = selectivity(neurons.responses(split.inputs.reshape(-1, 8, 8, 1)), split.targets)
    assert f"1 ({test.positive} of 60 images)" in told
    for right in (test.exact.accuracy.max(), test.spaced.accuracy.max(), test.apart):
        assert f"{100 * right:.1f} %\n" in told
    assert told.count("64.8 %") >= 3


def test_where_the_data_are_gone_filters_are_still_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = folder / "one" / "job.yaml"
    start, text = job.read_text().index("data:"), job.read_text()
    end = text.index("strategy:")
    job.write_text(text[:start] + "data: {source: npz, file: gone.npz}\n" + text[end:])
    assert report_neurons(folder / "one", folder, "neurons", None) == [folder / "filters.png"]
    assert "no stimuli:" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"gone\.npz"):
        report_neurons(folder / "one", folder, "neurons", folder / "labelled.npz")


def test_invalid_labelled_images_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^--images: job dense has no autoencoder's neurons$"):
        report_neurons(folder / "dense", folder, "neurons", folder / "labelled.npz")
    images = np.zeros((9, 8, 8, 1), np.float32)
    for inputs, targets, says in (
        (images, np.zeros((9, 1), np.float32), "its targets must be labels of two classes or more"),
        (images, np.array([0] * 8 + [1]), "class 1 has 1 images, must have at least 2"),
        (images[:, 1:], np.arange(9) % 2, r"holds 56 numbers an image, the network sees \(8, 8, 1\)"),
    ):
        np.savez(folder / "wrong.npz", inputs=inputs, targets=targets)
        with pytest.raises(DataError, match=f"wrong.npz: {says}$"):
            report_neurons(folder / "top", folder, "neurons", folder / "wrong.npz")
