"""The best stimulus where it is known, and what every search must keep to."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn.autoencoders.autoencoder import Eq1, SparseAutoencoder
from dbelief.nn.autoencoders.neuron_response import Neurons
from dbelief.nn.kernels import depth_to_space
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.optimal_stimulus import optimal_stimuli
from tests.dbelief.nn.autoencoders.test_stacks import IMAGE, SMALL, drawn

CPU = select_backend("cpu")
STARTS = np.random.default_rng(7).standard_normal((4, *IMAGE))


def filters(stacks: list[tuple[Eq1, Lcn]]) -> np.ndarray:
    """All of alpha W of the lowest stack as images, (neurons, pixels): what the unit images answer."""
    neurons = Neurons(IMAGE, stacks[:1], drawn(IMAGE, stacks), CPU)
    pixels = int(np.prod(IMAGE))
    return neurons.responses(np.eye(pixels).reshape(pixels, *IMAGE)).T


@pytest.mark.parametrize("sign", [1, -1])
def test_a_filter_s_is_the_filter(sign: int) -> None:
    w, chosen = filters(SMALL), np.array([0, 17, 101])
    neurons = Neurons(IMAGE, SMALL[:1], drawn(IMAGE, SMALL), CPU)
    found = optimal_stimuli(neurons.gradients, chosen, STARTS, signs=np.full(3, sign))
    for image, response, row in zip(found.images, found.responses, w[chosen], strict=True):
        length = np.linalg.norm(row)
        assert sign * np.vdot(image, row) / length >= 1 - 1e-9
        assert response == pytest.approx(length, rel=1e-9)


def test_a_filter_answers_at_its_own_place() -> None:
    """The responses to unit images are the tensor itself, over its receptive field."""
    layer = SparseAutoencoder(IMAGE, SMALL[0][0], CPU)
    weight = drawn(IMAGE, SMALL)["stack1.weight"]
    w = filters(SMALL).reshape(12, 10, 3, *IMAGE)  # rows, columns, map: two a block
    tile = weight[1, 2, 7].reshape(2, 2, 8, 1)  # neuron 7 of a block: dy 1, dx 0, map 1
    pixels = depth_to_space(tile, 2)[0]
    alpha = drawn(IMAGE, SMALL)["stack1.alpha"][0]
    assert layer.blocks.w_shape == weight.shape
    np.testing.assert_allclose(w[3, 4, 1, 2:6, 4:8], alpha * pixels / np.linalg.norm(pixels), atol=1e-12)


def test_stack_gradients_match_central_differences() -> None:
    neurons = Neurons(IMAGE, SMALL, drawn(IMAGE, SMALL), CPU)
    chosen = np.random.default_rng(1).integers(neurons.count, size=len(STARTS))
    values, slopes = neurons.gradients(STARTS, chosen)
    np.testing.assert_array_equal(values, neurons.responses(STARTS)[np.arange(len(STARTS)), chosen])
    v = np.random.default_rng(2).standard_normal(STARTS.shape)
    ends = [neurons.gradients(STARTS + sign * 1e-6 * v, chosen)[0] for sign in (1, -1)]
    slope = (slopes * v).sum(axis=(1, 2, 3))
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, slope, rtol=1e-5, atol=1e-7)


def test_optimal_stimulus_beats_random_images() -> None:
    neurons = Neurons(IMAGE, SMALL, drawn(IMAGE, SMALL), CPU)
    chosen = np.array([0, 5, 11])
    found = optimal_stimuli(neurons.gradients, chosen, STARTS[:2], steps=60)
    assert (np.diff(found.history, axis=0) >= 0).all()
    assert found.history.shape == (61, 2 * len(chosen))
    np.testing.assert_allclose(np.linalg.norm(found.images.reshape(3, -1), axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(found.responses, found.history[-1].reshape(2, 3).max(axis=0))
    np.testing.assert_allclose(neurons.gradients(found.images, chosen)[0], found.responses, rtol=1e-12)
    rng = np.random.default_rng(3)
    for size in (0.3, 1.0, 10.0):  # beside it, and anywhere
        drawn_images = found.images[0] + size * rng.standard_normal((200, *IMAGE)) / np.sqrt(np.prod(IMAGE))
        drawn_images /= np.linalg.norm(drawn_images.reshape(200, -1), axis=1)[:, None, None, None]
        assert neurons.responses(drawn_images)[:, chosen[0]].max() < found.responses[0]


def test_where_a_neuron_sees_nothing_its_stimulus_is_empty() -> None:
    """Contrast normalisation makes a neuron nearly blind to lengths: what a start holds elsewhere must go at once."""
    neurons = Neurons(IMAGE, SMALL, drawn(IMAGE, SMALL), CPU)
    found = optimal_stimuli(neurons.gradients, np.array([0]), STARTS, steps=3)
    field = np.abs(neurons.gradients(STARTS[:1], np.array([0]))[1][0]).max(axis=-1) > 0
    assert 0 < field.sum() < field.size
    assert (found.images[0][~field] == 0).all()
