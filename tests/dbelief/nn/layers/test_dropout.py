import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Network
from dbelief.nn.layers.dropout import Dropout, batch_key
from dbelief.nn.layers.layer import Dense, Tanh
from dbelief.nn.losses import SoftmaxCrossEntropy
from dbelief.nn.workspace import Workspace
from tests.dbelief.nn.conftest import Check

CPU = select_backend("cpu")
X = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)


def dropped(share: float = 0.3, inputs: np.ndarray = X, seed: int = 0, place: int = 1) -> np.ndarray:
    """Which of 50 x 40 ones a layer sets to 0."""
    work, ones = Workspace(CPU), np.ones((50, 40), np.float32)
    work.key = batch_key(work, inputs, seed, place)
    y, dx = np.empty_like(ones), np.empty_like(ones)
    Dropout(share).forward(work, ones, (), y)
    Dropout(share).backward(work, ones, y, ones, (), (), dx)
    np.testing.assert_array_equal(y, dx)
    assert np.all((y == 0) | (abs(y - 1 / (1 - share)) < 1e-6))
    mask: np.ndarray = y == 0
    return mask


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(share: float) -> None:
    batches = np.random.default_rng(1).standard_normal((50, 50, 40)).astype(np.float32)
    masks = np.array([dropped(share, batch) for batch in batches])
    five = 5 * np.sqrt(share * (1 - share))  # standard deviations
    assert abs(masks.mean() - share) <= five / np.sqrt(masks.size)
    assert abs(masks.mean(axis=0) - share).max() <= five / np.sqrt(len(masks))
    # Neighbours and batches know nothing of each other.
    if share:
        for one, other in ((masks[:, :, 1:], masks[:, :, :-1]), (masks[1:], masks[:-1])):
            assert abs((one & other).mean() - share**2) < 5 * share / np.sqrt(one.size)


def test_the_mask_is_a_function_of_seed_place_and_batch() -> None:
    first = dropped()
    assert np.array_equal(first, dropped())
    moved, swapped = X.copy(), X[::-1].copy()
    moved[-1, -1] = np.nextafter(moved[-1, -1], np.float32(9))
    for other in (
        dropped(seed=1),
        dropped(seed=2**32),
        dropped(place=2),
        dropped(inputs=moved),
        dropped(inputs=swapped),
    ):
        assert abs((first & other).mean() - 0.09) < 0.05


def test_masks_are_stable() -> None:
    """By the formula in Python's own integers, and as written down: another version or device must find the same."""
    whole, odd = 2**32 - 1, 0x9E3779B9

    def scrambled(n: int) -> int:
        n = ((n ^ n >> 16) * 0x85EBCA6B) & whole
        n = ((n ^ n >> 13) * 0xC2B2AE35) & whole
        return n ^ n >> 16

    inputs = np.arange(8, dtype=np.float32).reshape(2, 4)
    key = sum(scrambled(i * odd & whole ^ bits) for i, bits in enumerate(inputs.view(np.uint32).ravel().tolist()))
    for number in (7, 0, 1):  # seed, its upper half, place
        key = scrambled(key & whole ^ number)
    expected = [i for i in range(2000) if scrambled(i * odd & whole ^ key) < int(0.02 * 2**32)]
    assert np.flatnonzero(dropped(0.02, inputs, seed=7)).tolist() == expected
    assert expected[:6] == [76, 91, 144, 306, 318, 425]


def network(seed: int = 0) -> Network:
    return Network([Dense(9), Tanh(), Dropout(0.4), Dense(3)], SoftmaxCrossEntropy(), 6, 3, CPU, seed)


def batch(kind: type = np.float64) -> Batch:
    rng = np.random.default_rng(2)
    return Batch(rng.standard_normal((5, 6)).astype(kind), rng.integers(0, 3, 5))


def test_loss_and_gradient_are_deterministic(check_gradient: Check) -> None:
    one, two = network(), network()
    views = {name: p.astype(np.float64) for name, p in one.parameters(np.random.default_rng(0)).items()}
    out, again = ({name: np.full_like(view, np.nan) for name, view in views.items()} for _ in range(2))
    loss = one.loss_and_gradient(views, batch(), out)
    two.loss_and_gradient(views, Batch(batch().inputs + 1, batch().targets), again)
    two.evaluate(views, batch())
    assert two.loss_and_gradient(views, batch(), again) == loss
    assert all(np.array_equal(out[name], again[name]) for name in views)
    assert network(seed=1).loss_and_gradient(views, batch(), again) != loss
    gradients = [out[name].copy() for name in views]
    check_gradient(lambda: one.loss_and_gradient(views, batch(), out), list(views.values()), gradients)


def test_evaluation_drops_nothing() -> None:
    whole = Network([Dense(9), Tanh(), Dense(3)], SoftmaxCrossEntropy(), 6, 3, CPU)
    views = network().parameters(np.random.default_rng(0))
    trained = network()
    trained.loss_and_gradient(views, batch(np.float32), {name: np.empty_like(p) for name, p in views.items()})
    assert trained.evaluate(views, batch(np.float32)) == whole.evaluate(views, batch(np.float32))
