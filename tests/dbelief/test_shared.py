"""Blocks of shared memory: who may open one, what becomes of it, and that nothing of it stays behind."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief import shared
from dbelief.errors import Refused
from dbelief.shared import FOLDER, HEADER_BYTES, Block, make_block, open_block, sweep

ROOM = 40_000


def names() -> set[str]:
    return {path.name for path in FOLDER.glob("dbelief-*")}


def floats(block: Block) -> np.ndarray:
    return block.bytes(HEADER_BYTES, block.size - HEADER_BYTES).view(np.float32)


def made(room: int = ROOM) -> Block:
    block = make_block(room)
    assert block is not None
    return block


@contextlib.contextmanager
def opened(block: Block) -> Iterator[Block]:
    with block.offered():
        other = open_block(block.name, block.token, block.size)
    yield other


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(shared, "_told", threading.Event())


def test_both_see_one_memory_and_no_name_is_left() -> None:
    block = made()
    with opened(block) as other:
        assert f"dbelief-{block.name}" not in names()
        here, there = floats(block), floats(other)
        here[:] = np.arange(here.size)
        np.testing.assert_array_equal(there, here)
        there[3] = -1.0
        assert here[3] == -1.0
    assert resource_tracker._resource_tracker._fd is None  # type: ignore[attr-defined]  # never started


def test_memory_lives_as_long_as_arrays_over_it() -> None:
    block = made()
    values = floats(block)[10:20]
    values[:] = 5.0
    address = block.__array_interface__["data"][0]
    assert address in mapped()
    del block
    np.testing.assert_array_equal(values, 5.0)
    assert address in mapped()
    del values
    assert address not in mapped()


def mapped() -> set[int]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.split("-")[0], 16) for line in lines if f"{FOLDER}/" in line}


def test_an_array_is_found_by_where_it_lies() -> None:
    block = made()
    values = floats(block)
    assert block.offset_of(values) == HEADER_BYTES
    assert block.offset_of(values[5:7]) == HEADER_BYTES + 20
    assert block.offset_of(values[::2]) is None
    assert block.offset_of(np.zeros(3, np.float32)) is None
    assert block.offset_of(floats(made())) is None


@pytest.mark.parametrize(("offset", "length"), [(0, 4), (HEADER_BYTES - 4, 8), (HEADER_BYTES, ROOM + 4), (1 << 62, 4)])
def test_nothing_but_its_numbers_is_given(offset: int, length: int) -> None:
    with pytest.raises(Refused, match="are not within a block"):
        made().bytes(offset, length)


# -- who may open it -----------------------------------------------------------------------------------------


def refused(reason: str, name: str, token: bytes, size: int) -> None:
    with pytest.raises(Refused, match=reason):
        open_block(name, token, size)


def test_only_the_block_that_is_meant_is_opened() -> None:
    block = made()
    refused("no such block is on this host", block.name, block.token, block.size)  # it has no name yet
    with block.offered():
        refused("another token", block.name, bytes(32), block.size)
        refused("no block has such a name or token", block.name, block.token[:-1], block.size)
        refused(f"has {block.size} bytes", block.name, block.token, block.size + 4096)
        assert open_block(block.name, block.token, block.size).size == block.size
    refused("no such block is on this host", block.name, block.token, block.size)


@pytest.mark.parametrize("name", ["", "../etc/passwd", "A" * 32, "a" * 31, "a" * 32 + "\n"])
def test_a_name_is_32_digits(name: str) -> None:
    refused("no block has such a name", name, bytes(32), 4096)


@pytest.fixture
def path() -> Iterator[Path]:
    path = FOLDER / f"dbelief-{os.urandom(16).hex()}"
    yield path
    path.unlink(missing_ok=True)


def written(path: Path, size: int = 8192) -> int:
    """A file as a block is, but for what a test changes; its lock is held, or it would be swept away."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.posix_fallocate(fd, 0, size)
    os.pwrite(fd, b"t" * 32, 0)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_what_is_not_safe_to_be_mapped_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = path.name.removeprefix("dbelief-")
    fd = written(path)
    try:
        assert open_block(name, b"t" * 32, 8192).size == 8192
        os.chmod(path, 0o640)
        refused("with mode 600", name, b"t" * 32, 8192)
        os.chmod(path, 0o600)
        os.truncate(path, 1 << 20)
        refused("8192 of them in memory", name, b"t" * 32, 1 << 20)
        os.truncate(path, 8192)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        refused("not a file of this user's", name, b"t" * 32, 8192)
    finally:
        os.close(fd)


def test_links_and_pipes_are_refused(path: Path, tmp_path: Path) -> None:
    name = path.name.removeprefix("dbelief-")
    fd = written(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused("cannot be opened", name, b"t" * 32, 8192)
    path.unlink()
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(reader, fcntl.LOCK_EX)
    refused("not a file of this user's", name, b"t" * 32, 8192)
    for held in (fd, reader):
        os.close(held)


# -- renewing ------------------------------------------------------------------------------------------------


def test_what_others_do_to_the_memory_of_before_is_seen_no_more() -> None:
    block = made()
    values = floats(block)
    values[:] = np.arange(values.size)
    with opened(block) as former:
        name, token = block.name, block.token
        block.renew()
        floats(former)[:] = -1.0
        np.testing.assert_array_equal(values, np.arange(values.size))
        values[0] = 7.0
        assert floats(former)[0] == -1.0
    assert (block.name, block.token) != (name, token)
    with opened(block) as other:  # by its new name
        floats(other)[1] = 8.0
    np.testing.assert_array_equal(values[:3], [7.0, 8.0, 2.0])


def test_without_room_for_a_copy_it_is_memory_of_this_process_alone(request: pytest.FixtureRequest) -> None:
    block = made()
    values = floats(block)
    values[:] = 3.0
    with opened(block) as former:
        request.getfixturevalue("no_room")
        block.renew()
        floats(former)[:] = -1.0
    np.testing.assert_array_equal(values, 3.0)
    assert (block.name, block.offerable) == ("", False)
    values[:] = 4.0
    assert floats(former)[0] == -1.0
    block.renew()
    np.testing.assert_array_equal(values, 4.0)


# -- nothing to be had, nothing left -------------------------------------------------------------------------


def test_that_there_is_none_is_said_once(no_room: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert make_block(1 << 20) is None
    assert make_block(1 << 20) is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "/dev/shm gives no 1.0 MiB (No space left on device)" in said


def test_some_of_the_file_system_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Small:
        f_bavail, f_blocks, f_frsize = 8, 64, 1 << 20

    monkeypatch.setattr(shared, "_told", threading.Event())
    monkeypatch.setattr(os, "fstatvfs", lambda fd: Small)
    assert make_block(ROOM) is not None
    Small.f_bavail = 7
    held = len(os.listdir("/proc/self/fd"))
    assert make_block(ROOM) is None
    assert len(os.listdir("/proc/self/fd")) == held
    assert "(an eighth of its 64 MiB is left to others)" in capfd.readouterr().err


_MAKER = """
import sys
from dbelief.shared import make_block
block = make_block(4096)
with block.offered():
    print(block.name, flush=True)
    sys.stdin.read()
"""


def test_the_name_that_a_killed_process_left_is_swept_away() -> None:
    with subprocess.Popen([sys.executable, "-c", _MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        ready, _, _ = select.select([maker.stdout], [], [], 60.0)
        name = f"dbelief-{maker.stdout.readline().decode().strip()}" if ready else ""
        try:
            sweep()
            made()
            assert name in names(), "of one who lives"
        finally:
            maker.send_signal(signal.SIGKILL)
        maker.wait()
        assert name in names()
        made()
        assert name not in names()


def test_other_files_stay(path: Path) -> None:
    strangers = [path.with_name(f"dbelief-{what}") for what in ("x", "A" * 32)]
    for stranger in strangers:
        stranger.touch(0o600)
    try:
        sweep()
        assert all(stranger.exists() for stranger in strangers)
    finally:
        for stranger in strangers:
            stranger.unlink()


def test_a_block_without_a_way_to_a_name_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    block = made()
    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(OSError, match="not permitted"), block.offered():
        raise AssertionError("it was not offered")
    assert (block.name, block.offerable) == ("", False)
