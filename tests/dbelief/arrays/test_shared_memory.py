"""Blocks of shared memory: access, lifetime, and no leftovers."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest

from dbelief.arrays import shared_memory
from dbelief.arrays.shared_memory import HEADER_BYTES, Block, make_block, open_block
from dbelief.errors import Rejected
from dbelief.security import named_socket
from dbelief.security.named_socket import FOLDER, STALE_S, remove_stale_names
from tests.faults.machines import trouble

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
    monkeypatch.setattr(shared_memory, "_unavailable_logged", threading.Event())


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


def test_memory_is_mapped_as_long_as_arrays_use_it() -> None:
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
    return {int(line.split("-")[0], 16) for line in lines if "/memfd:dbelief" in line}


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
    with pytest.raises(Rejected, match="are not within a block"):
        made().bytes(offset, length)


# -- who may open it -----------------------------------------------------------------------------------------


def refused(reason: str, name: str, token: bytes, size: int) -> None:
    with pytest.raises(Rejected, match=reason):
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


@contextlib.contextmanager
def offering(path: Path, fd: int | None) -> Iterator[tuple[str, bytes, int]]:
    """What a peer that is not to be trusted passes to all who call; gives what to ask for."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                call, _ = door.accept()
                with call:
                    call.sendmsg([b"x"]) if fd is None else socket.send_fds(call, [b"x"], [fd])

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        door.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield path.name.removeprefix("dbelief-"), b"t" * 32, 8192
        finally:
            path.unlink()
            door.shutdown(socket.SHUT_RDWR)
            thread.join()


def memory(size: int = 8192, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    if size:
        os.posix_fallocate(fd, 0, size)
        os.pwrite(fd, b"t" * 32, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_unsafe_memory_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, short, long, unsealed = memory(), memory(4096), memory(8192 + 4096), memory(seals=0)
    os.ftruncate(sparse := memory(0, 0), 8192)
    fcntl.fcntl(sparse, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(file, 0, 8192)
    pipe, other_end = os.pipe()
    try:
        with offering(path, whole) as asked:
            assert open_block(*asked).size == 8192
        for fd in (unsealed, file, pipe):
            with offering(path, fd) as asked:
                refused("whose size is sealed", *asked)
        for fd in (short, long, sparse):
            with offering(path, fd) as asked:
                refused("of them in memory, and not 8192", *asked)
        with offering(path, None) as asked:
            refused("no descriptor came", *asked)
        with offering(path, whole) as asked:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            refused("not memory of this user's", *asked)
    finally:
        for fd in (whole, short, long, unsealed, sparse, file, pipe, other_end):
            os.close(fd)


def test_a_block_is_passed_to_processes_of_its_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    block = made()
    with block.offered():
        assert stat.S_IMODE((FOLDER / f"dbelief-{block.name}").stat().st_mode) == 0o600
        monkeypatch.setattr("dbelief.arrays.shared_memory.same_user", lambda call: False)
        refused("no descriptor came", block.name, block.token, block.size)


def test_block_cannot_be_truncated() -> None:
    """A process that touches pages that are gone ends by SIGBUS."""
    block = made()
    fd = block._fd
    assert fd is not None
    for size in (0, 2 * block.size):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with opened(block) as other:
        assert not floats(other).any()


def test_a_name_without_a_socket_behind_it_is_no_block(path: Path, tmp_path: Path) -> None:
    asked = path.name.removeprefix("dbelief-"), b"t" * 32, 8192
    path.symlink_to(tmp_path / "nothing")
    refused("no such block is on this host", *asked)
    path.unlink()
    path.touch()
    refused("no such block is on this host", *asked)


# -- renewing ------------------------------------------------------------------------------------------------


def test_renewed_block_ignores_writes_to_the_old_memory() -> None:
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


def test_block_without_room_becomes_private_memory(request: pytest.FixtureRequest) -> None:
    block = made()
    values = floats(block)
    values[:] = 3.0
    with opened(block) as former:
        request.getfixturevalue("no_room")
        block.renew()
        floats(former)[:] = -1.0
    np.testing.assert_array_equal(values, 3.0)
    assert block.name == ""
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
    assert "1.0 MiB cannot be had or offered in /dev/shm (No space left on device)" in said


_MAKER = """
import sys
from dbelief.arrays.shared_memory import make_block
block = make_block(4096)
block.bytes(4096, 4096)[:] = 7
with block.offered():
    print(block.name, block.token.hex(), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def making(*before: str) -> Iterator[tuple[subprocess.Popen[bytes], str, bytes]]:
    """A process that offers a block until it is killed: it, and the block's name and token."""
    command = [*before, sys.executable, "-c", _MAKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        name = ""
        try:
            assert select.select([maker.stdout], [], [], 60.0)[0], "waited for a block"
            name, token = maker.stdout.readline().decode().split()
            yield maker, name, bytes.fromhex(token)
        finally:
            maker.send_signal(signal.SIGKILL)
            maker.wait()
            (FOLDER / f"dbelief-{name}").unlink(missing_ok=True)


@pytest.mark.skipif(bool(trouble()), reason=trouble())
def test_containers_with_a_common_folder_share_memory() -> None:
    """Whatever network and process numbers they have."""
    with making("unshare", "--net", "--pid", "--fork", "--kill-child") as (_, name, token):
        assert (open_block(name, token, 8192).bytes(4096, 4096) == 7).all()


def test_the_name_that_a_killed_process_left_is_swept_away() -> None:
    with making() as (maker, digits, _):
        name = f"dbelief-{digits}"
        for _ in range(2):
            made()
            assert name in names(), "of one that listens, however old it is"
            grown_old(name)
        maker.send_signal(signal.SIGKILL)
        maker.wait()
        remove_stale_names()
        assert name not in names()


def test_fresh_name_without_listener_is_not_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        remove_stale_names()
        assert path.exists()
        grown_old(path.name)
        remove_stale_names()
        assert not path.exists()


def grown_old(name: str) -> None:
    before_s = time.time() - 2 * STALE_S
    os.utime(FOLDER / name, (before_s, before_s))


def test_other_files_stay(path: Path) -> None:
    strangers = [path.with_name(f"dbelief-{what}") for what in ("x", "A" * 32)]
    for stranger in strangers:
        stranger.touch(0o600)
        grown_old(stranger.name)
    try:
        remove_stale_names()
        assert all(stranger.exists() for stranger in strangers)
    finally:
        for stranger in strangers:
            stranger.unlink()


def test_failed_offer_leaves_a_private_block(monkeypatch: pytest.MonkeyPatch) -> None:
    block = made()
    held = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(named_socket, "FOLDER", FOLDER / "not there")
    with pytest.raises(FileNotFoundError), block.offered():
        raise AssertionError("it was not offered")
    assert block.name == ""
    assert len(os.listdir("/proc/self/fd")) == held - 1
