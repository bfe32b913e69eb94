"""Blocks of memory that a worker and a shard on one host share.

A block is a file of /dev/shm that its worker makes without a name. It has one only while shards are to open it, each of
which sees by a token in the first page that it is the same file: so whether two processes share memory is found out by
both of them looking, whatever machines, containers and addresses lie between. When all have answered the name goes, and
the memory lives as long as somebody has it mapped: who dies leaves nothing.

Who dies in between leaves a name. A worker holds its file's lock (flock) for as long as the name is there; so whoever
gets the lock of a named block knows that its maker is dead, and takes the name away. Everybody looks whenever a block
is made, opened or left. This holds over the bounds of containers, where process numbers mean nothing.

Memory is taken when a block is made (posix_fallocate): to write to a page that the file system has no room for would
kill the process. Nobody but the same user may open a block (mode 0600), so that nobody else can take its pages away.

Nothing here is known to Python's resource tracker, which would unlink what others use.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hmac
import mmap
import os
import re
import secrets
import stat
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.console import announce
from dbelief.errors import Refused

FOLDER = Path("/dev/shm")
HEADER_BYTES = 4096
"""The first page, which has the token; numbers begin on the next."""
TOKEN_BYTES = 32
LEFT = 8
"""One part of so many of /dev/shm stays free: MPI and others would be killed where it has no page for them."""

_NAME = re.compile(r"[0-9a-f]{32}")
_PREFIX = "dbelief-"
_MODE = 0o600
_MOVE = 1 | 2  # MREMAP_MAYMOVE, and MREMAP_FIXED: to this very address
_ALONE = -1
"""In place of a file: memory of this process alone."""
_told = threading.Event()


class Block:
    """Memory that is mapped here for as long as arrays over it are used; made by `make_block` or `open_block`.

    Parameters
    ----------
    size
        Bytes, with the first page.
    name
        32 hexadecimal digits; "" where it is nobody else's to open.
    token
        What its first page holds.
    fd
        Of the file.
    """

    def __init__(self, size: int, name: str, token: bytes, fd: int) -> None:
        self.size, self.name, self.token = size, name, token
        self._address = _map(size, fd)
        self._fd: int | None = None
        # What a process has mapped at its end its other threads may be at work on: it is left to the kernel.
        weakref.finalize(self, _libc().munmap, self._address, size).atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy: arrays over the block keep it mapped."""
        return {"data": (self._address, False), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def bytes(self, offset: int, length: int) -> np.ndarray:
        """(length,) bytes from `offset` on.

        Raises
        ------
        Refused
            They are not all behind the first page and within the block.
        """
        if offset < HEADER_BYTES or offset + length > self.size:
            raise Refused(f"{length} bytes at {offset} are not within a block of {self.size}")
        return np.asarray(self)[offset : offset + length]

    def offset_of(self, values: np.ndarray) -> int | None:
        """Where in the block an array lies, in bytes; None where that is elsewhere, or its numbers are scattered."""
        offset: int = values.__array_interface__["data"][0] - self._address
        here = offset >= HEADER_BYTES and offset + values.nbytes <= self.size
        return offset if here and values.flags.c_contiguous else None

    # -- of who made it ------------------------------------------------------------------------------------

    def hold(self, fd: int) -> None:
        """Keep the file, and its lock, until it was offered."""
        self._fd = fd

    @property
    def offerable(self) -> bool:
        """Whether it can have its name: it has it once."""
        return self._fd is not None

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Have its name in /dev/shm for the length of a `with`.

        Raises
        ------
        OSError
            It cannot have one here.
        """
        assert self._fd is not None, "a block is offered once"
        path = _path(self.name)
        try:
            # Without a folder's descriptor Python would link the link in /proc itself.
            os.link(f"/proc/self/fd/{self._fd}", path, src_dir_fd=self._fd, follow_symlinks=True)
        except OSError:
            self.name = ""
            self.close()
            raise
        try:
            yield
        finally:
            path.unlink()
            self.close()  # and with the file its lock

    def renew(self) -> None:
        """Leave the memory to whoever else has it mapped, and have a copy of it at the same address.

        Arrays over the block hold what they held, and what others do to the memory of before is seen no more. The copy
        can be offered anew. Where there is no room for it in /dev/shm, it is memory of this process alone. Only who
        reads may use the block meanwhile. Cost: one copy.

        Raises
        ------
        OSError
            There is no memory at all.
        """
        self.close()
        self.name = ""
        fd, name, token = _ALONE, "", b""
        try:
            fd, name, token = _file(self.size)
        except OSError as error:
            tell_why_not(self.size, error)
        try:
            address = _map(self.size, fd)
            copy = np.frombuffer(memoryview((ctypes.c_char * self.size).from_address(address)), np.uint8)
            copy[HEADER_BYTES:] = np.asarray(self)[HEADER_BYTES:]
            _check(_libc().mremap(address, self.size, self.size, _MOVE, self._address), "mremap")
        except BaseException:
            if fd != _ALONE:
                os.close(fd)
            raise
        if fd != _ALONE:
            self.name, self.token = name, token
            self.hold(fd)

    def close(self) -> None:
        """Let go of the file; the memory stays."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def make_block(room: int) -> Block | None:
    """A block with room for so many bytes behind its first page; None, and a line, where it cannot be had here.

    The line is said once in a process.
    """
    sweep()
    size = HEADER_BYTES + room
    try:
        fd, name, token = _file(size)
        block = Block(size, name, token, fd)
    except OSError as error:
        tell_why_not(size, error)
        return None
    block.hold(fd)
    return block


def open_block(name: str, token: bytes, size: int) -> Block:
    """Somebody else's block, while he offers it.

    Raises
    ------
    Refused
        There is none here, or it is not the one that is meant, or not safe to be mapped; says why.
    """
    sweep()
    if not _NAME.fullmatch(name) or len(token) != TOKEN_BYTES:
        raise Refused("no block has such a name or token")
    try:
        fd = os.open(_path(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Refused("no such block is on this host") from None
    except OSError as error:
        raise Refused(f"the block cannot be opened: {error.strerror}") from None
    try:
        _check_ours(os.fstat(fd), size)
        if not hmac.compare_digest(os.pread(fd, TOKEN_BYTES, 0), token):
            raise Refused("the block has another token")
        return Block(size, name, token, fd)
    except OSError as error:
        raise Refused(f"the block cannot be mapped: {error.strerror}") from None
    finally:
        os.close(fd)


def sweep() -> None:
    """Take away the names of blocks whose makers died while they were there."""
    with suppress(OSError):
        for entry in os.scandir(FOLDER):
            if entry.name.startswith(_PREFIX) and _NAME.fullmatch(entry.name.removeprefix(_PREFIX)):
                _sweep(entry.path)


def _sweep(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)


def _path(name: str) -> Path:
    return FOLDER / f"{_PREFIX}{name}"


def _check_ours(found: os.stat_result, size: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != _MODE:
        raise Refused(f"the block is not a file of this user's with mode {_MODE:o}")
    if found.st_size != size or found.st_blocks * 512 < size:
        raise Refused(f"the block has {found.st_size} bytes, {found.st_blocks * 512} of them in memory, and not {size}")


def _file(size: int) -> tuple[int, str, bytes]:
    """A file without a name, all of it in memory, locked and with a token; its name to be, and the token."""
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no {FOLDER}")
    fd = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, _MODE)
    try:
        os.fchmod(fd, _MODE)  # whatever the process's mask
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.posix_fallocate(fd, 0, size)
        room = os.fstatvfs(fd)
        if room.f_bavail * LEFT < room.f_blocks:
            raise OSError(errno.ENOSPC, f"an eighth of its {room.f_blocks * room.f_frsize >> 20} MiB is left to others")
        token = secrets.token_bytes(TOKEN_BYTES)
        os.pwrite(fd, token, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, secrets.token_hex(16), token


def tell_why_not(size: int, error: OSError) -> None:
    """Say, once in a process, that there is no block to be had."""
    if not _told.is_set():
        _told.set()
        announce(
            f"no shared memory: {FOLDER} gives no {size / (1 << 20):.1f} MiB ({error.strerror or error}); arrays that "
            "have none go over TCP, also between processes of one host"
        )


# -- the C library -------------------------------------------------------------------------------------------


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = (address, size, number, number, number, ctypes.c_long), address
    libc.mremap.argtypes, libc.mremap.restype = (address, size, size, number, address), address
    libc.munmap.argtypes, libc.munmap.restype = (address, size), number
    return libc


def _map(size: int, fd: int) -> int:
    """Map a file, with all its pages at once: each would cost a fault at its first use."""
    flags = mmap.MAP_POPULATE | (mmap.MAP_SHARED if fd != _ALONE else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _check(_libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0), "mmap")


def _check(address: int | None, what: str) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return address
