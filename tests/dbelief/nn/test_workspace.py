import numpy as np

from dbelief.arrays.backend import select_backend
from dbelief.nn.workspace import Workspace

FLOAT = np.dtype(np.float32)


def test_shorter_batch_reuses_the_buffer() -> None:
    work = Workspace(select_backend("cpu"))
    long = work.array("y", (8, 3), FLOAT)
    short = work.array("y", (5, 3), FLOAT)
    assert short.shape == (5, 3)
    assert short.flags.c_contiguous
    assert short.ctypes.data == long.ctypes.data == work.array("y", (8, 3), FLOAT).ctypes.data


def test_buffers_are_aligned_and_apart() -> None:
    work = Workspace(select_backend("cpu"))
    first, second = work.array("a", (3, 5), FLOAT), work.array("b", (3, 5), FLOAT)
    assert first.ctypes.data % 64 == second.ctypes.data % 64 == 0
    assert not np.shares_memory(first, second)


def test_another_width_or_dtype_gets_a_new_buffer() -> None:
    work = Workspace(select_backend("cpu"))
    assert work.array("y", (4, 3), FLOAT).shape == (4, 3)
    assert work.array("y", (4, 2), FLOAT).shape == (4, 2)
    assert work.array("y", (4, 2), np.dtype(np.float64)).dtype == np.float64


def test_rows() -> None:
    work = Workspace(select_backend("cpu"))
    for m in (3, 5, 2):
        np.testing.assert_array_equal(work.rows(m), range(m))
