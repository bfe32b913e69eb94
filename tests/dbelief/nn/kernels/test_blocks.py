from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dbelief.nn.kernels.blocks import Blocks, row_length

F4 = np.dtype(np.float32)


def test_the_first_layer_of_the_paper() -> None:
    """200 x 200 x 3 pixels, fields of 20 x 20, steps of 4, 8 neurons at each of a block's 4 x 4 places."""
    blocks = Blocks(rows=50, columns=50, window=5, depth=4 * 4 * 3, neurons=4 * 4 * 8)
    assert (blocks.nr, blocks.nc, blocks.fan_in) == (46, 46, 20 * 20 * 3)
    assert math.prod(blocks.w_shape) == 325_017_600
    assert blocks.flops(96) == 2 * 96 * 325_017_600
    assert blocks.y_shape(96)[-2:] == (128, 96)


@pytest.mark.parametrize("wrong", [{"rows": 2}, {"columns": 2}, {"window": 0}, {"depth": 0}, {"neurons": -1}])
def test_a_layer_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if 2 not in wrong.values() else "must fit"):
        Blocks(**{"rows": 4, "columns": 5, "window": 3, "depth": 2, "neurons": 2} | wrong)


def test_row_length_of_a_part_is_that_of_the_whole() -> None:
    whole = np.zeros((3, 1, 4, 10), F4)
    assert row_length("x", whole, (3, 1, 4, 10), F4) == 10
    assert row_length("x", whole[..., 2:7], (3, 1, 4, 5), F4) == 10
    assert row_length("x", whole[:1, :, :1], (1, 1, 1, 10), F4) == 10
    assert row_length("x", whole[..., :1], (3, 1, 4, 1), F4) == 10


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, 2, 4, 6), np.float64),
        np.zeros((3, 2, 4, 5), F4),
        np.zeros((3, 2, 8, 6), F4)[:, :, ::2][:, :, :4][::-1],
        np.zeros((3, 2, 4, 12), F4)[..., ::2],
        np.zeros((3, 4, 4, 6), F4)[:, ::2],
        np.zeros((3, 2, 6, 4), F4).swapaxes(2, 3),
        np.broadcast_to(np.zeros((3, 2, 1, 6), F4), (3, 2, 4, 6)),
    ],
    ids=["dtype", "shape", "reversed", "every other column", "gaps", "transposed", "repeated"],
)
def test_other_arrays_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^(the rows of )?x "):
        row_length("x", wrong, (3, 2, 4, 6), F4)


def test_weights_have_no_gaps() -> None:
    blocks = Blocks(4, 5, 3, 2, 2)
    blocks.check_weights("w", np.zeros(blocks.w_shape, F4), F4)
    window = np.zeros((blocks.nr + 1, blocks.nc + 2, *blocks.w_shape[2:]), F4)[1:, 1:-1]
    blocks.check_weights("w", window, F4, whole=False)
    with pytest.raises(ValueError, match="the rows of w must be in one piece"):
        blocks.check_weights("w", window, F4)
    with pytest.raises(ValueError, match="each block of w must be C-contiguous"):
        blocks.check_weights("w", np.zeros((*blocks.w_shape[:-1], 4), F4)[..., :2], F4, whole=False)
    with pytest.raises(ValueError, match="w must be C-contiguous"):
        blocks.check_weights("w", np.zeros((*blocks.w_shape[:-1], 4), F4)[..., :2], F4)
