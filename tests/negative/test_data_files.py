"""Data that is missing, torn, or not what the job says, from every source that reads files."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.negative.harness import Content, Wrong, job

TRAIN, LABELS = "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"
TEST, TEST_LABELS = "mnist/t10k-images-idx3-ubyte", "mnist/t10k-labels-idx1-ubyte"


def images(count: int, rows: int = 2, magic: int = 0x803) -> bytes:
    return struct.pack(">4I", magic, count, rows, 3) + bytes(3 * rows * count)


def labels(*values: int, magic: int = 0x801) -> bytes:
    return struct.pack(">2I", magic, len(values)) + bytes(values)


IDX: dict[str, Content] = {
    TRAIN: images(6), LABELS: labels(0, 1, 2, 0, 1, 2), TEST: images(2), TEST_LABELS: labels(2, 0)
}  # fmt: skip


def idx(name: str, says: str, validation: int = 1, **changed: Content | None) -> Wrong:
    """Small MNIST files with some changed, or missing where None."""
    names = {
        "images": TRAIN,
        "labels": LABELS,
        "test_images": TEST,
        "test_labels": TEST_LABELS,
        "packed": TRAIN + ".gz",
    }
    wanted = {**IDX, **{names[which]: content for which, content in changed.items()}}
    files = {path: content for path, content in wanted.items() if content is not None}
    return _row(name, says, f"{{source: idx, folder: mnist, validation: {validation}}}", files)


def npz(name: str, says: str, data: str = "", **arrays: Any) -> Wrong:
    """An .npz file of these arrays."""
    good = {"inputs": np.zeros((20, 3), np.float32), "targets": np.arange(20) % 2}
    held, file = {**good, **arrays}, io.BytesIO()
    np.savez(file, **{what: array for what, array in held.items() if array is not None})
    return _row(name, says, f"{{source: npz, file: a.npz{data}}}", {"a.npz": file.getvalue()})


def libsvm(name: str, says: str, train: Content, data: str = "", test: Content = "1 1:1\n") -> Wrong:
    """Text in LIBSVM format."""
    return _row(name, says, f"{{source: libsvm, train: a.svm{data}}}", {"a.svm": train, "b.svm": test})


def csv(name: str, says: str, content: Content, data: str = "target: kind") -> Wrong:
    """Separated text."""
    return _row(name, says, f"{{source: csv, file: a.csv, kind: classes, {data}}}", {"a.csv": content})


def _row(name: str, says: str, data: str, files: Mapping[str, Content]) -> Wrong:
    """A good job on this data: it is to be trained, and nothing may begin."""
    return Wrong(name, "train job.yaml", says, files={"job.yaml": job(data=data), **files})


ROWS = [
    _row("idx: a folder that is not there",
         r".*/mnist: no such folder",
         "{source: idx, folder: mnist}", {}),
    idx("idx: a missing file", r".*/t10k-images-idx3-ubyte: no such file, nor one that ends in \.gz", test_images=None),
    idx("idx: an empty file", ".*/train-labels-idx1-ubyte: is empty", labels=b""),
    idx("idx: a torn header", ".*/train-images-idx3-ubyte: ends within its header, after 7 of 16 bytes",
        images=images(6)[:7]),
    idx("idx: torn images", ".*/train-images-idx3-ubyte: holds 35 bytes of data, but its header says 36",
        images=images(6)[:-1]),
    idx("idx: another magic number", ".*/train-images-idx3-ubyte: not an IDX file of images: its magic number is .*",
        images=images(6, magic=0xD03)),
    idx("idx: labels where images should be", ".*/train-images-idx3-ubyte: not an IDX file of images: .*",
        images=labels(*range(16))),
    idx("idx: fewer images than labels", ".*/train-images-idx3-ubyte: has 5 images, but there are 6 labels",
        images=images(5)),
    idx("idx: a class without samples", ".*/mnist: class 1 has no sample in the training set, though labels go up to 2",
        labels=labels(0, 2, 0, 2, 0, 2)),
    idx("idx: a label out of range", r".*/mnist: label 9 of the test set is out of range, 0 to 2 in training",
        test_labels=labels(9, 0)),
    idx("idx: images of another size", ".*/mnist: training images have 6 pixels, test images 9",
        test_images=images(2, 3)),
    idx("idx: nothing left to train on", ".*/mnist: 6 of 6 training images for validation leave none", validation=6),
    idx("idx: a gzip file that is cut short", r".*/train-images-idx3-ubyte\.gz: the gzip file is cut short",
        images=None,
        packed=gzip.compress(images(6))[:-9]),
    _row("a variable that is not set", r"path '\$\{NOT_SET_ANYWHERE\}/mnist' of the job file: the environment variable "
         "NOT_SET_ANYWHERE is not set", "{source: idx, folder: '${NOT_SET_ANYWHERE}/mnist'}", {}),
    _row("npz: a missing file", r".*/a\.npz: no such file", "{source: npz, file: a.npz}", {}),
    _row("npz: a file with a typing error", r".*/pionts\.npz: no such file; did you mean points\.npz\?",
         "{source: npz, file: pionts.npz}", {"points.npz": b""}),
    _row("npz: text", r".*/a\.npz: not an \.npz file", "{source: npz, file: a.npz}", {"a.npz": "1,2,3\n"}),
    _row("npz: cut short", r".*/a\.npz: the \.npz file is cut short or damaged \(.*\)", "{source: npz, file: a.npz}",
         {"a.npz": npz("", "").files["a.npz"][:200]}),
    npz("npz: other names", r".*/a\.npz: must hold inputs and targets, or train_inputs and train_targets; it holds x",
        inputs=None, targets=None, x=np.zeros(3)),
    npz("npz: Python objects", r".*/a\.npz: holds an array that cannot be read \(.*\)",
        inputs=np.array([None] * 20, object)),
    npz("npz: numbers of another type", r".*/a\.npz: inputs are complex128, must be numbers; cast .*",
        inputs=np.zeros((20, 3), complex)),
    npz("npz: NaN", r".*/a\.npz: inputs: row 7 \(from 0\) holds NaN or infinity, .*",
        inputs=np.where(np.arange(20)[:, None] == 7, np.nan, np.zeros((20, 3)))),
    npz("npz: fewer targets than inputs", r".*/a\.npz: inputs are 20, targets have shape \(19,\)",
        targets=np.arange(19) % 2),
    npz("npz: no samples", r".*/a\.npz: there are no samples", inputs=np.zeros((0, 3)), targets=np.zeros(0, int)),
    npz("npz: a negative label", r".*/a\.npz: label -1 of the training set is negative; labels are 0, 1, \.\.\.",
        targets=np.arange(20) % 2 - 1),
    npz("npz: one class only", r".*/a\.npz: all training samples have the same label, 0", targets=np.zeros(20, int)),
    npz("npz: nothing left to train on",
        r".*/a\.npz: of 20 samples, 12 for validation and 10 for test leave no sample .*",
        ", validation: 12, test: 10"),
    libsvm("libsvm: empty", r".*/a\.svm: is empty", ""),
    libsvm("libsvm: no index:value", r".*/a\.svm, line 2: 'x' is not index:value", "0 1:1\n1 x\n"),
    libsvm("libsvm: a label that is none", r".*/a\.svm, line 2: 'cat' is not a label", "0 1:1\ncat 1:1\n"),
    libsvm("libsvm: indices that fall", r".*/a\.svm, line 1: index '1' must be above 2; indices ascend",
           "0 2:1 1:1\n1 1:1\n"),
    libsvm("libsvm: infinity", r".*/a\.svm, line 2: inf is not a finite float32", "0 1:1\n1 1:inf\n"),
    libsvm("libsvm: more features than said", r".*/a\.svm: has index 3, but there are 2 features", "0 1:1\n1 3:1\n",
           ", features: 2"),
    libsvm("libsvm: a label that training lacks", r".*/b\.svm: label 7 is not in the training file",
           "0 1:1\n1 1:1\n" * 9, ", test: b.svm", "7 1:1\n"),
    csv("csv: empty", r".*/a\.csv: is empty", ""),
    csv("csv: a column that is not there", r".*/a\.csv: no column is called 'kind'; did you mean 'kinds'\?",
        "x,kinds\n1,a\n"),
    csv("csv: a row of other length", r".*/a\.csv, line 3: .*", "x,kind\n1,a\n2,b,3\n"),
    csv("csv: words where numbers should be", r".*/a\.csv, line 3.*'two'.*", "x,kind\n1,a\ntwo,b\n"),
    csv("csv: NaN", r".*/a\.csv, line 3.*nan.*", "x,kind\n1,a\nnan,b\n"),
    csv("csv: no header", r".*/a\.csv: its first row holds numbers only; for a file without a header say header: false",
        "1,2\n3,4\n", "target: 2"),
    csv("csv: not UTF-8", r".*/a\.csv, line 1: is not UTF-8", b"\xff,kind\n1,a\n"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", ROWS, ids=str)
def test_wrong_data_is_refused(wrong: Wrong, assert_refused: Callable[[Wrong], None]) -> None:
    assert_refused(wrong)
