"""Tokens, lines of text, images and Python objects: their samples, streamed as in memory, and one line for bad ones."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dbelief.data import Dataset, load, sizes, sizes_and_units
from dbelief.data.new_samples import read_samples
from dbelief.data.samples import Samples
from dbelief.data.streams.streamed import StreamedSplit
from dbelief.errors import DataError
from tests.dbelief.data.sources import DATA

ALL = {"validation": 0, "test": 0}


def loaded(base: Path, **fields: Any) -> Dataset:
    """The dataset, which is the same streamed as in memory, and as large as its sizes say."""
    spec = DATA.validate_python(fields)
    data, held = load(spec, base), load(DATA.validate_python(fields | {"streamed": False}), base)
    sets = [(data.train, held.train), (data.validation, held.validation), (data.test, held.test)]
    assert tuple(len(one) if one else 0 for one, _ in sets) == sizes(spec, base)
    for one, other in sets:
        if one is not None and other is not None:
            check_same(one, other)
    _, read_as = sizes_and_units(spec, base)
    assert read_as is not None
    assert data.train is not None
    assert sum(read_as.sizes) == len(data.train)
    return data


def check_same(one: Samples, other: Samples) -> None:
    assert isinstance(one, StreamedSplit)
    order = one.order(1, 2)[0 : len(one)]
    assert np.array_equal(order, other.order(1, 2)[0 : len(other)])
    batches = [samples.gather(order[:7], samples.buffer(7)) for samples in (one, other)]
    assert np.array_equal(batches[0].inputs, batches[1].inputs)
    assert np.array_equal(batches[0].targets, batches[1].targets)
    assert batches[0].inputs.dtype == batches[1].inputs.dtype


def refused(base: Path, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(DATA.validate_python(fields | {"streamed": False}), base)
    message = str(caught.value).replace(f"{base}/", "")
    assert "\n" not in message
    return message


def test_new_images_and_texts(tmp_path: Path) -> None:
    written = write_images(tmp_path / "all", 3)
    data, spec = loaded(tmp_path, **images()), DATA.validate_python(images())
    assert data.form is not None
    inputs = read_samples(tmp_path / "all" / "cat", spec, data.form)
    assert {row.tobytes() for row in inputs} == {pixels for pixels, name in written.items() if name == "cat"}
    (tmp_path / "a.txt").write_text("x\tone\ny\ttwo\n")
    (tmp_path / "new").write_text("two\nmore than six")
    data, spec = loaded(tmp_path, **lines()), DATA.validate_python(lines())
    assert data.form is not None
    assert data.train is not None
    assert np.array_equal(read_samples(tmp_path / "a.txt", spec, data.form), data.train.inputs), "classes are cut off"
    inputs = read_samples(tmp_path / "new", spec, data.form)
    assert inputs[0].tolist() == data.train.inputs[1].tolist()
    assert bytes(inputs[1].astype(np.uint8)) == b"more t"


# -- tokens --------------------------------------------------------------------------------------------------


def tokens(**more: Any) -> dict[str, Any]:
    return {"source": "tokens", "files": "*.npy", "vocabulary": 50, "context": 4, "unit": 3, **ALL, **more}


@pytest.mark.parametrize("stride", [None, 1, 3])
def test_a_sample_of_tokens_is_followed_by_its_target(tmp_path: Path, stride: int | None) -> None:
    rows = []
    for name, length in (("a", 26), ("b", 4), ("c", 17)):  # the second is too short for a sample
        values = np.random.default_rng(length).integers(0, 50, length).astype(np.uint16)
        np.save(tmp_path / f"{name}.npy", values)
        rows += [values[at : at + 5] for at in range(0, length - 4, stride or 4)]
    data = loaded(tmp_path, **tokens(stride=stride))
    assert data.train is not None
    assert (data.classes, data.features, data.train.whole) == (50, (4,), True)
    assert np.array_equal(data.train.inputs, np.array(rows)[:, :4])
    assert np.array_equal(data.train.targets, np.array(rows)[:, 4])


def test_bare_tokens_are_mapped_and_sets_are_whole_units(tmp_path: Path) -> None:
    np.arange(400, dtype="<u2").tofile(tmp_path / "t.bin")
    data = loaded(tmp_path, **tokens(files="t.bin", vocabulary=400, validation=0.1, test=2))
    sets = [one for one in (data.train, data.validation, data.test) if one is not None]
    found = np.sort(np.concatenate([one.targets for one in sets]))
    assert np.array_equal(found, np.arange(4, 400, 4))
    assert [len(one) for one in sets[1:]] == [9, 6]


def test_bad_tokens_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, 3, 4]))
    assert refused(tmp_path, **tokens()) == "a.npy: 4 tokens are fewer than data.context and one more, 5"
    np.save(tmp_path / "a.npy", np.array([1, 2, 3, 4, 5, 6, 70, 8, 9, 10]))
    assert refused(tmp_path, **tokens()) == "a.npy: token 6 (from 0) is 70, and data.vocabulary allows 0 to 49"
    np.save(tmp_path / "a.npy", np.zeros((4, 4)))
    assert "must be whole numbers of one axis" in refused(tmp_path, **tokens())
    (tmp_path / "a.npy").write_bytes(b"x")
    assert refused(tmp_path, **tokens()).startswith("a.npy: cannot be mapped: ")
    (tmp_path / "t.bin").write_bytes(b"")
    assert refused(tmp_path, **tokens(files="t.bin")) == "t.bin: 0 tokens are fewer than data.context and one more, 5"
    (tmp_path / "t.bin").write_bytes(b"xyz")
    assert refused(tmp_path, **tokens(files="t.bin")) == "t.bin: 3 bytes are no whole number of uint16 (data.dtype)"


@pytest.mark.parametrize(
    ("written", "read"), [("<u4", "uint16"), ("<i8", "uint16"), ("<u2", "uint8"), ("<i8", "int32")]
)
def test_tokens_of_a_wider_type_are_refused(tmp_path: Path, written: str, read: str) -> None:
    np.tile(np.arange(40), 2).astype(written).tofile(tmp_path / "t.bin")
    times = np.dtype(written).itemsize // np.dtype(read).itemsize
    message = refused(tmp_path, **tokens(files="t.bin", dtype=read))
    assert message.startswith(f"t.bin: of every {times} numbers, read as {read} (data.dtype), only the first is not 0")


def test_tokens_with_many_zeros_are_read(tmp_path: Path) -> None:
    for values in (np.zeros(64), np.tile([1, 0], 32), np.tile([3, 0, 5, 0, 7, 0, 9, 1], 8), np.arange(64) % 9 // 2):
        values.astype("<u2").tofile(tmp_path / "t.bin")
        assert loaded(tmp_path, **tokens(files="t.bin")).train is not None


def test_wide_tokens_of_large_vocabularies_are_refused(tmp_path: Path) -> None:
    np.arange(65_500, 65_600, dtype="<u4").tofile(tmp_path / "t.bin")
    assert "look like numbers of 32 bits" in refused(tmp_path, **tokens(files="t.bin", vocabulary=100_000))


# -- lines ---------------------------------------------------------------------------------------------------


def lines(**more: Any) -> dict[str, Any]:
    return {"source": "lines", "files": "*.txt", "length": 6, "unit": 4, **ALL, **more}


def test_a_line_is_a_class_and_the_bytes_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\tfine\nbad\tso bad\tit hurts\r\n")
    (tmp_path / "b.txt").write_bytes("good\tüber\nugly\t".encode())
    data = loaded(tmp_path, **lines())
    assert data.train is not None
    assert data.names == ("bad", "good", "ugly")
    assert data.train.targets.tolist() == [1, 0, 1, 2]
    texts = [bytes(row.astype(np.uint8)) for row in data.train.inputs]
    assert texts == [b"fine\0\0", b"so bad", "über".encode() + b"\0", bytes(6)]


def test_lines_are_read_by_unit(tmp_path: Path) -> None:
    written = [f"{number % 3}\t{number}" for number in range(300)]
    (tmp_path / "a.txt").write_text("\n".join(written) + "\n")
    data = loaded(tmp_path, **lines(validation=1, test=0.2, unit=None))
    sets = [one for one in (data.train, data.validation, data.test) if one is not None]
    found = [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for one in sets for row in one.inputs]
    assert sorted(found, key=int) == [str(number) for number in range(300)]
    labels = np.concatenate([one.targets for one in sets])
    assert [int(text) % 3 for text in found] == labels.tolist()


def test_only_line_ends_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\ta\rb\r\ny\tc\x0cd\n")
    data = loaded(tmp_path, **lines())
    assert data.train is not None
    texts = [bytes(row.astype(np.uint8)).rstrip(b"\0") for row in data.train.inputs]
    assert texts == [b"a\rb", b"c\x0cd"]


def test_a_byte_order_mark_is_part_of_no_class(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfx\ta\ny\tb\nx\tc\n")
    data = loaded(tmp_path, **lines())
    assert data.train is not None
    assert data.names == ("x", "y")
    assert data.train.targets.tolist() == [0, 1, 0]
    assert data.form is not None
    new = read_samples(tmp_path / "a.txt", DATA.validate_python(lines()), data.form)
    assert np.array_equal(new, data.train.inputs)


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\t1\nno class\n")
    assert refused(tmp_path, **lines()) == "a.txt, line 2: has no class before '\\t' (data.delimiter)"
    path.write_bytes(b"x\t1\n\xff\t2\n")
    assert refused(tmp_path, **lines()) == "a.txt, line 2: its class is not UTF-8"
    path.write_bytes(b"x\t1\n\ny\t2\n")
    assert refused(tmp_path, **lines()) == "a.txt, line 2: is empty"
    path.write_bytes(gzip.compress(b"x\t1\ny\t2\n"))
    assert refused(tmp_path, **lines()).startswith("a.txt, line 1: is no text but gzip")
    path.write_bytes(b"x\t1\nx\t2\n")
    assert refused(tmp_path, **lines()) == "a.txt: all training lines have the same class, 'x'"
    path.write_bytes(b"")
    assert refused(tmp_path, **lines()) == "a.txt: there are no lines"
    path.write_bytes(b"x\t1\ny\t2\n")
    (tmp_path / "t.lines").write_bytes(b"x\t1\nz\t2\n")
    wanted = "t.lines, lines 1 to 2: class 'z' is in no training line"
    assert refused(tmp_path, **lines(test_files="t.lines")) == wanted


# -- images --------------------------------------------------------------------------------------------------


def images(**more: Any) -> dict[str, Any]:
    return {"source": "images", "folder": "all", "height": 4, "width": 3, "channels": 1, "unit": 5, **ALL, **more}


def write_images(folder: Path, n: int = 9) -> dict[bytes, str]:
    """Images of two classes by their pixels."""
    rng, written = np.random.default_rng(0), dict[bytes, str]()
    for name in ("cat", "dog"):
        (folder / name / "deep").mkdir(parents=True)
        for number in range(n):
            pixels = rng.integers(0, 256, (4, 3), np.uint8)
            written[pixels.tobytes()] = name
            Image.fromarray(pixels).save(folder / name / ("deep" if number % 2 else ".") / f"{number}.png")
    return written


def test_images_have_the_class_of_their_folder(tmp_path: Path) -> None:
    written = write_images(tmp_path / "all")
    data = loaded(tmp_path, **images(validation=4))
    assert data.train is not None
    assert data.validation is not None
    assert (data.names, data.features) == (("cat", "dog"), (12,))
    assert np.bincount(data.validation.targets).tolist() == [2, 2], "shares are of each class"
    seen = dict[bytes, str]()
    for one in (data.train, data.validation):
        seen |= {row.tobytes(): ("cat", "dog")[label] for row, label in zip(one.inputs, one.targets, strict=True)}
    assert seen == written
    batch = data.train.gather(np.arange(3), data.train.buffer(3))
    assert np.array_equal(batch.inputs, data.train.inputs[:3] * np.float32(1 / 255))
    assert {*data.train.targets[:5].tolist()} == {0, 1}, "classes are mixed in a unit"


def test_hidden_images_are_no_samples(tmp_path: Path) -> None:
    write_images(tmp_path / "all", 2)
    cat = tmp_path / "all" / "cat"
    for folder in (cat / ".ipynb_checkpoints", cat / "@eaDir", tmp_path / "all" / "__MACOSX", tmp_path / "all" / ".x"):
        folder.mkdir()
        (folder / "0.png").write_bytes((cat / "0.png").read_bytes())
    (cat / "._0.png").write_bytes(b"\0\5\x16\7")
    (cat / "folder.png").mkdir()
    data = loaded(tmp_path, **images())
    assert data.train is not None
    assert (data.names, np.bincount(data.train.targets).tolist()) == (("cat", "dog"), [2, 2])
    assert data.form is not None
    assert len(read_samples(cat, DATA.validate_python(images()), data.form)) == 2


def png_of(width: int, height: int) -> bytes:
    """The beginning of an image that says it is so large."""
    header = b"IHDR" + np.array([width, height], ">u4").tobytes() + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + header + zlib.crc32(header).to_bytes(4, "big") + b"\0\0\0\1IDAT"


def test_odd_images_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "all", 2)
    odd = tmp_path / "all" / "cat" / "x.png"
    odd.write_bytes(png_of(60_000, 60_000))
    assert refused(tmp_path, **images()) == "all/cat/x.png: has more than 178,956,970 pixels: make it smaller"
    odd.write_bytes(b"")
    assert refused(tmp_path, **images()) == "all/cat/x.png: no image, or a damaged one"
    odd.unlink()
    odd.symlink_to("away.png")
    assert refused(tmp_path, **images()) == "all/cat/x.png: is a link to away.png, which does not exist"
    odd.rename(odd.with_suffix(".HEIC"))
    assert refused(tmp_path, **images()).startswith("all/cat/x.HEIC: images of this kind are not read")


def test_odd_images_are_read(tmp_path: Path) -> None:
    write_images(tmp_path / "all", 1)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 3), np.uint8)
    image, turned = Image.fromarray(pixels), Image.fromarray(np.rot90(pixels))
    folder, exif = tmp_path / "all" / "cat", turned.getexif()
    exif[0x0112] = 6  # a quarter to the right
    turned.save(folder / "a.png", exif=exif)
    image.save(folder / "b.png", exif=b"Exif\0\0no EXIF at all")
    image.save(folder / "c.jfif", format="PNG")
    image.save(folder / "d \u00fc\u65e5.PNG")
    image.quantize(12).save(folder / "e.png", transparency=b"\0\xff")
    data = loaded(tmp_path, **images(channels=3))
    assert data.train is not None
    assert data.train.inputs.tolist().count(pixels.reshape(-1).tolist()) == 5


def test_images_are_converted_and_resized(tmp_path: Path) -> None:
    write_images(tmp_path / "all", 2)
    Image.new("RGBA", (9, 9), (10, 200, 30, 255)).save(tmp_path / "all" / "cat" / "x.png")
    data = loaded(tmp_path, **images(channels=3))
    assert data.train is not None
    assert data.features == (36,)
    assert [10, 200, 30] * 12 in data.train.inputs.tolist()


def test_bad_images_are_named(tmp_path: Path) -> None:
    assert refused(tmp_path, **images()).endswith("all: no such folder")
    write_images(tmp_path / "all", 2)
    (tmp_path / "all" / "cat" / "1.png").write_bytes(b"torn")
    assert refused(tmp_path, **images()) == "all/cat/1.png: no image, or a damaged one"
    Image.fromarray(np.full((4, 3), 40_000, np.uint16)).save(tmp_path / "all" / "cat" / "1.png")
    assert refused(tmp_path, **images()) == "all/cat/1.png: has pixels of mode I;16: convert them to 8 bits a channel"
    (tmp_path / "all" / "empty").mkdir()
    assert refused(tmp_path, **images()).startswith("all/empty: has no images (.bmp, ")
    (tmp_path / "held" / "bird").mkdir(parents=True)
    (tmp_path / "all" / "empty").rmdir()
    wanted = "held/bird: class 'bird' is not in the training folder"
    assert refused(tmp_path, **images(test_folder="held")) == wanted


# -- Python objects ------------------------------------------------------------------------------------------

SAMPLES = """
import threading
import time

import numpy as np

class Squares:
    def __init__(self, n=10):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        return np.array([index, index**2], np.float32), index % 3

class Units:
    units = {"a": 4, "b": 2}
    def read(self, name):
        n = self.units[name]
        return np.full((n, 3), ord(name), np.uint8), np.arange(n) / 2

class Broken(Squares):
    def __getitem__(self, index):
        if index == 7:
            raise OSError("the disk is gone")
        if index == 8:
            return np.zeros(3), 0
        return super().__getitem__(index)

class Torn(Units):
    def read(self, name):
        return np.zeros((3, 3), np.uint8), np.zeros(3)

class Whole(Squares):
    def __getitem__(self, index):
        return np.array([index]), 0.5

class OneFile(Squares):
    # One place, as of a file, for all items: a second thread would move it.
    def __getitem__(self, index):
        self.place = index
        time.sleep(0)
        return super().__getitem__(self.place)

class Alone(Squares):
    busy = threading.Lock()
    def __getitem__(self, index):
        assert self.busy.acquire(False)
        time.sleep(0)
        self.busy.release()
        return super().__getitem__(index)

squares, units, broken, torn, none = Squares(), Units(), Broken(8), Torn(), Squares(0)
whole, one_file, exclusive, alone = Whole(), OneFile(600), Alone(600), [0.5, 1.5]
def held():
    return Squares(5)
number = 5
"""


def python(tmp_path: Path, train: str, **more: Any) -> dict[str, Any]:
    (tmp_path / "s.py").write_text(SAMPLES)
    return {"source": "python", "train": f"s.py:{train}", "unit": 3, **more}


def test_an_object_with_items(tmp_path: Path) -> None:
    data = loaded(tmp_path, **python(tmp_path, "squares", classes=3, validation="s.py:held"))
    assert data.train is not None
    assert data.validation is not None
    assert (data.classes, data.features, len(data.validation)) == (3, (2,), 5)
    assert data.train.inputs[:, 1].tolist() == [index**2 for index in range(10)]
    assert data.train.targets.tolist() == [index % 3 for index in range(10)]


@pytest.mark.parametrize("name", ["units", "Units"])
def test_an_object_with_units(tmp_path: Path, name: str) -> None:
    data = loaded(tmp_path, **python(tmp_path, name, scale=0.5))
    assert data.train is not None
    assert data.train.inputs[:, 0].tolist() == [97] * 4 + [98] * 2
    assert data.train.targets[:, 0].tolist() == [0, 0.5, 1, 1.5, 0, 0.5]
    assert data.train.gather(np.arange(1), data.train.buffer(1)).inputs[0, 0] == 48.5


def test_a_user_s_object_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    data = loaded(tmp_path, **python(tmp_path, "one_file", classes=3))
    assert data.train is not None
    order, buffer = data.train.order(0, 0), data.train.buffer(600)
    buffer.expect(order, 0, 600)
    batch = data.train.gather(order[0:600], buffer)
    assert np.array_equal(batch.inputs[:, 0], order[0:600])
    assert np.array_equal(batch.targets, order[0:600] % 3)


def test_an_object_of_two_data_sets_too(tmp_path: Path) -> None:
    sets = [loaded(tmp_path, **python(tmp_path, "exclusive", classes=3)).train for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda own: own.inputs.tolist() if own is not None else [], sets)
    assert one == other


@pytest.mark.parametrize(
    ("train", "more", "message"),
    [
        ("number", {}, "s.py:number: is neither a data set with len() and items"),
        ("nothing", {}, "s.py: 'nothing' is not known"),
        ("none", {}, "s.py:none: has no samples"),
        ("squares", {"classes": 2}, "s.py:squares: a sample from 0 to 2 has label 2, and data.classes allows 0 to 1"),
        ("broken", {"classes": 3}, "s.py, line 24: item 7 raised OSError: the disk is gone (s.py:broken)"),
        ("torn", {}, "s.py:torn, unit 'a': has 3 samples, and units say 4"),
        ("alone", {}, "s.py:alone: item 0 is a float, must be a pair (inputs, target)"),
        ("whole", {"scale": 0.5}, "s.py:whole: inputs are whole numbers, to which data.scale does not apply"),
        ("squares", {"classes": 3, "test": "s.py:units"}, "s.py:units: samples have inputs (3,) of uint8, and"),
    ],
)
def test_bad_objects_are_named(tmp_path: Path, train: str, more: dict[str, Any], message: str) -> None:
    assert refused(tmp_path, **python(tmp_path, train, **more)).startswith(message)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("([1.0, [2.0]], 0)", "s.py:made: item 0 has inputs of list that NumPy cannot take (setting an array element"),
        ("([1.0, 2.0], None)", "s.py:made: item 0 has targets of object (NoneType), must be numbers"),
        ("({'x': 1}, 0)", "s.py:made: item 0 has inputs of object (dict), must be numbers"),
        ("('abc', 0)", "s.py:made: item 0 has inputs of <U3 (str), must be numbers"),
    ],
)
def test_items_that_are_no_numbers_are_named(tmp_path: Path, item: str, message: str) -> None:
    (tmp_path / "s.py").write_text(f"made = [{item}] * 5")
    spec = {"source": "python", "train": "s.py:made", "classes": 2}
    assert refused(tmp_path, **spec).startswith(message)


def test_an_error_of_len_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("class made:\n    __getitem__ = 0\n    def __len__(self):\n        return self.n\n")
    message = refused(tmp_path, source="python", train="s.py:made", classes=2)
    assert message.startswith("s.py, line 4: len(made) raised AttributeError: ")


@pytest.mark.torch
@pytest.mark.parametrize(
    "item",
    [
        "torch.ones(3, requires_grad=True)",
        "torch.ones(3, dtype=torch.bfloat16)",
        "torch.ones(3).to_sparse()",
        "[torch.ones(1, requires_grad=True)[0]] * 3",
        "[torch.ones((), dtype=torch.bfloat16)] * 3",
    ],
)
def test_tensors_that_numpy_does_not_take_are_converted(tmp_path: Path, item: str) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    (tmp_path / "s.py").write_text(f"import torch\nmade = [({item}, torch.tensor(i % 2)) for i in range(6)]")
    data = loaded(tmp_path, source="python", train="s.py:made", classes=2)
    assert data.train is not None
    np.testing.assert_array_equal(data.train.gather(np.arange(6), data.train.buffer(6)).inputs, np.ones((6, 3)))


@pytest.mark.torch
def test_tensors_without_numbers_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    (tmp_path / "s.py").write_text("import torch\nmade = [(torch.ones(3, device='meta'), 0)] * 6")
    message = refused(tmp_path, source="python", train="s.py:made", classes=2)
    assert message.startswith("s.py:made: item 0 has inputs of Tensor that NumPy cannot take (Cannot copy")
