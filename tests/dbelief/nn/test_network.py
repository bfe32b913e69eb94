from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch, Network
from dbelief.nn.layers.image import Image
from dbelief.nn.layers.layer import Dense, Layer, ReLU, Sigmoid, Tanh
from dbelief.nn.losses import Loss, SoftmaxCrossEntropy, SquareLoss
from tests.examples import examples
from tests.traced import traced

Check = Callable[[Any, Any, Any], None]
Views = dict[str, np.ndarray]
CPU = select_backend("cpu")


def classifier(*hidden: Layer, features: int = 6, classes: int = 4) -> Network:
    return Network([*hidden, Dense(classes)], SoftmaxCrossEntropy(), features, classes, CPU)


def random_views(network: Network, kind: type = np.float32) -> Views:
    rng = np.random.default_rng(3)
    drawn = network.parameters(rng)
    return {name: rng.standard_normal(value.shape).astype(kind) for name, value in drawn.items()}


def like(views: Mapping[str, np.ndarray]) -> Views:
    return {name: np.full_like(value, np.nan) for name, value in views.items()}


def batch_of(m: int, features: int = 6, classes: int = 4, kind: type = np.float32) -> Batch:
    rng = np.random.default_rng(m)
    return Batch(rng.standard_normal((m, features)).astype(kind), rng.integers(0, classes, m))


def test_parameters_are_named_shaped_and_ordered() -> None:
    network = classifier(Dense(5), ReLU(), Dense(3), Tanh())
    drawn = network.parameters(np.random.default_rng(0))
    assert [(name, value.shape) for name, value in drawn.items()] == [
        ("dense1.weight", (6, 5)),
        ("dense1.bias", (5,)),
        ("dense2.weight", (5, 3)),
        ("dense2.bias", (3,)),
        ("dense3.weight", (3, 4)),
        ("dense3.bias", (4,)),
    ]
    assert all(value.dtype == np.float32 for value in drawn.values())


def test_he_initialization_before_relu_only() -> None:
    drawn = classifier(Dense(50), ReLU(), Dense(50), Sigmoid()).parameters(np.random.default_rng(0))
    he, glorot = (6 / 6) ** 0.5, (6 / (50 + 50)) ** 0.5
    assert 0.9 * he < abs(drawn["dense1.weight"]).max() <= he
    assert 0.9 * glorot < abs(drawn["dense2.weight"]).max() <= glorot


hidden_layers = st.lists(
    st.one_of(st.integers(1, 5).map(Dense), st.sampled_from([Sigmoid(), Tanh()])), min_size=0, max_size=4
)


@examples(30)
@given(hidden=hidden_layers, m=st.integers(1, 5), square=st.booleans())
def test_gradient_of_any_stack(check_gradient: Check, hidden: list[Layer], m: int, square: bool) -> None:
    loss: Loss = SquareLoss() if square else SoftmaxCrossEntropy()
    network = Network([*hidden, Dense(3)], loss, 6, None if square else 3, CPU)
    batch = batch_of(m, classes=3, kind=np.float64)
    if square:
        batch = Batch(batch.inputs, np.random.default_rng(m).standard_normal((m, 3)))
    views = random_views(network, np.float64)
    out = like(views)
    network.loss_and_gradient(views, batch, out)
    check_gradient(lambda: network.evaluate(views, batch)[0] / m, list(views.values()), [out[name] for name in views])


def test_the_gradient_lands_in_views_of_one_flat_vector() -> None:
    network = classifier(Dense(5), ReLU())
    views, batch = random_views(network), batch_of(4)
    apart = like(views)
    network.loss_and_gradient(views, batch, apart)
    flat = np.full(sum(value.size for value in views.values()), np.nan, np.float32)
    cuts = np.cumsum([value.size for value in views.values()])[:-1]
    pieces = zip(views, np.split(flat, cuts), strict=True)
    network.loss_and_gradient(views, batch, {name: piece.reshape(views[name].shape) for name, piece in pieces})
    np.testing.assert_array_equal(flat, np.concatenate([apart[name].ravel() for name in views]))


@pytest.mark.parametrize("first", [Dense(5), Tanh()])
def test_parameters_and_batch_are_left_alone(first: Layer) -> None:
    network = classifier(first, ReLU())
    views, batch = random_views(network), batch_of(4)
    before = {name: value.copy() for name, value in views.items()}
    inputs, targets = batch.inputs.copy(), batch.targets.copy()
    network.loss_and_gradient(views, batch, like(views))
    assert all(np.array_equal(views[name], before[name]) for name in views)
    assert np.array_equal(batch.inputs, inputs)
    assert np.array_equal(batch.targets, targets)


def test_a_step_does_not_depend_on_the_batches_before_it() -> None:
    def make() -> Network:
        return classifier(Dense(5), ReLU(), Dense(7), Sigmoid())

    views, batch = random_views(make()), batch_of(4)
    fresh, used = like(views), like(views)
    loss = make().loss_and_gradient(views, batch, fresh)
    network = make()
    for m in (9, 2, 9):
        network.loss_and_gradient(views, batch_of(m), used)
    assert network.loss_and_gradient(views, batch, used) == loss
    assert all(np.array_equal(used[name], fresh[name]) for name in views)


def test_the_last_layers_outputs_are_read_flat() -> None:
    views, batch = {"dense1.weight": np.eye(6, dtype=np.float32), "dense1.bias": np.zeros(6, np.float32)}, batch_of(3)
    network = Network([Dense(6), Image(2, 3)], SoftmaxCrossEntropy(), 6, 6, CPU)
    flat = Network([Dense(6)], SoftmaxCrossEntropy(), 6, 6, CPU)
    one, other = like(views), like(views)
    assert network.loss_and_gradient(views, batch, one) == flat.loss_and_gradient(views, batch, other)
    assert all(np.array_equal(one[name], other[name]) for name in views)
    assert network.evaluate(views, batch) == flat.evaluate(views, batch)


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^layer image1: takes 2 x 3 x 2 = 12 numbers per sample, gets 6$"):
        classifier(Image(2, 3, 2))


class Spy:
    """A dense layer that notes whether it was asked for dL/dx."""

    kind, tensors = "dense", ("weight", "bias")

    def __init__(self, units: int) -> None:
        self._dense, self.asked = Dense(units), [False]
        self.outputs, self.sees, self.shapes, self.limit, self.forward = (
            self._dense.outputs,
            self._dense.sees,
            self._dense.shapes,
            self._dense.limit,
            self._dense.forward,
        )

    def backward(self, *arguments: Any) -> None:
        self.asked.append(arguments[-1] is not None)
        self._dense.backward(*arguments)


def test_input_gradient_is_not_computed() -> None:
    first, second = Spy(5), Spy(4)
    network = Network([Tanh(), first, ReLU(), second], SoftmaxCrossEntropy(), 6, 4, CPU)
    views = random_views(network)
    network.loss_and_gradient(views, batch_of(3), like(views))
    assert not any(first.asked)
    assert second.asked[-1]


def test_the_steady_state_allocates_next_to_nothing() -> None:
    network = classifier(Dense(80), ReLU(), Dense(64), Sigmoid(), Dense(90), Tanh(), features=100, classes=70)
    views = random_views(network)
    out = like(views)
    batches = [batch_of(m, 100, 70) for m in (128, 32, 77)]
    for batch in batches:
        network.loss_and_gradient(views, batch, out)
    for batch in batches:
        smallest_layer = len(batch) * 64 * 4
        _, kept, peak = traced(partial(network.loss_and_gradient, views, batch, out), steady=True)
        assert peak < 7168 < smallest_layer
        assert kept < 512


def test_numpys_settings_are_left_as_they_were() -> None:
    network = classifier()
    views = random_views(network)
    before = np.getbufsize(), np.geterr()
    network.loss_and_gradient(views, batch_of(3), like(views))
    network.evaluate(views, batch_of(3))
    assert (np.getbufsize(), np.geterr()) == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_loss_is_returned_without_warning(value: float) -> None:
    network = classifier(Dense(5), ReLU())
    views = random_views(network)
    views["dense1.weight"][:] = value
    assert not np.isfinite(network.loss_and_gradient(views, batch_of(3), like(views)))


def refused(batch: Batch, network: Network | None = None) -> str:
    network = network or classifier(Dense(5))
    views = random_views(network)
    with pytest.raises(ModelError) as caught:
        network.loss_and_gradient(views, batch, like(views))
    return str(caught.value)


def test_inputs_of_another_dtype_are_refused() -> None:
    expected = "layer dense1: got inputs of float64, expected float32 as its parameters"
    assert refused(batch_of(3, kind=np.float64)) == expected


def test_too_few_targets_are_refused() -> None:
    message = refused(Batch(np.zeros((3, 6), np.float32), np.zeros(2, int)))
    assert message == "loss softmax_cross_entropy: got 2 targets for 3 samples"


def test_an_empty_batch_is_refused() -> None:
    network = classifier()
    views = random_views(network)
    with pytest.raises(ValueError, match="empty batch"):
        network.evaluate(views, batch_of(0))


def test_other_classes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"has 2 outputs, expected 3 classes: 'bronz', 'bronze', 'gold'$"):
        Network([Dense(2)], SoftmaxCrossEntropy(), 3, 3, CPU, names=("bronz", "bronze", "gold"))
    names = [str(number) for number in range(10)]
    with pytest.raises(ModelError, match=r"10 classes: '0', .*'7' and 2 more$"):
        Network([Dense(9)], SoftmaxCrossEntropy(), 3, 10, CPU, names=names)
