from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_expit, log_softmax

from dbelief.arrays.backend import select_backend
from dbelief.errors import DataError, ModelError
from dbelief.nn.losses import Logistic, Loss, OneVsAll, SoftmaxCrossEntropy, SquareLoss
from dbelief.nn.workspace import Workspace
from tests.dbelief.nn.conftest import Check
from tests.examples import examples

sizes = st.integers(1, 9)


def targets_for(loss: Loss, m: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((m, k)) if isinstance(loss, SquareLoss) else rng.integers(0, k, m)


def total(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> float:
    work = Workspace(select_backend("cpu"))
    return float(loss.forward(work, outputs, targets, np.empty_like(outputs)))


@examples(30)
@given(loss=st.sampled_from([SoftmaxCrossEntropy(), OneVsAll(), SquareLoss()]), m=sizes, k=sizes)
def test_gradient_of_the_mean(check_gradient: Check, loss: Loss, m: int, k: int) -> None:
    rng, work = np.random.default_rng(m * 100 + k), Workspace(select_backend("cpu"))
    outputs, targets = rng.standard_normal((m, k)), targets_for(loss, m, k, rng)
    slope = np.empty_like(outputs)
    loss.forward(work, outputs, targets, slope)
    loss.backward(work, targets, slope)
    check_gradient(lambda: total(loss, outputs, targets) / m, [outputs], [slope])


@examples(30)
@given(sizes, st.integers(0, 99), st.sampled_from([1.0, 100.0]))
def test_logistic_loss_is_the_softmax_of_two_outputs(m: int, seed: int, scale: float) -> None:
    rng, work = np.random.default_rng(seed), Workspace(select_backend("cpu"))
    z, targets = rng.standard_normal((m, 1)) * scale, rng.integers(0, 2, m)
    one, two = Logistic(), SoftmaxCrossEntropy()
    both = one.by_class(work, z).copy()
    assert total(one, z, targets) == pytest.approx(total(two, both, targets), rel=1e-12)
    slope, slopes = np.empty_like(z), np.empty_like(both)
    for loss, outputs, out in ((one, z, slope), (two, both, slopes)):
        loss.forward(work, outputs, targets, out)
        loss.backward(work, targets, out)
    np.testing.assert_allclose(slope[:, 0], slopes[:, 1], rtol=1e-9, atol=1e-15)
    assert one.right(work, z, targets) == two.right(work, both, targets)
    np.testing.assert_allclose(one.log_probabilities(work, z), log_softmax(both, axis=1), rtol=1e-13, atol=1e-13)


def test_logistic_loss_is_for_two_classes() -> None:
    with pytest.raises(ModelError, match="loss logistic: is for two classes, and the data has 3"):
        Logistic().outputs(3)
    with pytest.raises(DataError, match=r"loss logistic: targets lie in 0\.\.2, expected 0\.\.1"):
        Logistic().check(1, np.array([0, 2]))


def test_one_vs_all_keeps_small_losses() -> None:
    outputs = np.array([[40.0, -40.0]], np.float32)  # log(1 + exp(z)) - z would be 0 here
    assert total(OneVsAll(), outputs, np.array([0])) == pytest.approx(2 * np.exp(-40), rel=1e-5)


def test_right_answers() -> None:
    work = Workspace(select_backend("cpu"))
    outputs = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]])
    for loss in (SoftmaxCrossEntropy(), OneVsAll()):
        assert loss.right(work, outputs, np.array([1, 1, 0])) == 2
    assert SquareLoss().right(work, outputs, outputs) is None


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_log_probabilities_against_scipy(scale: float) -> None:
    work, outputs = Workspace(select_backend("cpu")), np.random.default_rng(0).standard_normal((40, 7)) * scale
    found = SoftmaxCrossEntropy().log_probabilities(work, outputs)
    np.testing.assert_allclose(found, log_softmax(outputs, axis=1), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(OneVsAll().log_probabilities(work, outputs), log_expit(outputs), rtol=1e-13)


def test_square_loss_knows_no_probabilities() -> None:
    with pytest.raises(ModelError, match=r"^loss square: knows no classes"):
        SquareLoss().log_probabilities(Workspace(select_backend("cpu")), np.zeros((2, 3)))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_classes_of_every_integer_kind(dtype: Any) -> None:
    SoftmaxCrossEntropy().check(3, np.array([0, 2], dtype))


@pytest.mark.parametrize("targets", [[0, 3], [-1, 2]])
@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), OneVsAll()])
def test_a_class_out_of_range_is_named(loss: Loss, targets: list[int]) -> None:
    with pytest.raises(DataError, match=rf"{loss.name}: .*{min(targets)}\.\.{max(targets)}, expected 0\.\.2"):
        loss.check(3, np.array(targets))


@pytest.mark.parametrize("targets", [np.zeros((4, 3)), np.zeros(4), np.zeros((4, 1), int)])
@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), OneVsAll()])
def test_invalid_classes_are_refused(loss: Loss, targets: np.ndarray) -> None:
    with pytest.raises(ModelError, match=rf"{loss.name}: got targets .* expected integers"):
        loss.check(3, targets)


@pytest.mark.parametrize("targets", [np.zeros((4, 2)), np.zeros(4), np.zeros((4, 3), int)])
def test_square_loss_refuses_another_width(targets: np.ndarray) -> None:
    with pytest.raises(ModelError, match=r"square: got targets .* expected floats \(m, 3\)"):
        SquareLoss().check(3, targets)
