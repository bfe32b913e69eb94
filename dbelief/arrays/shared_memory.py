"""Blocks of memory that a worker and a shard on one host share.

A block is anonymous memory (memfd) of the worker that makes it. Its size is sealed: a process that maps it cannot lose
pages through another process, and be killed by SIGBUS. The worker passes the file descriptor to shards over a Unix
socket that has a name only while shards may fetch the descriptor (`dbelief.security.named_socket`). So two processes
detect by trying whether they can share memory, across any machines, containers and addresses. The memory exists while a
process has it open or mapped: a killed process leaves none. Every process that makes a block, or loses a worker,
removes the names that killed ones have left.

All pages are allocated when a block is made (posix_fallocate). Both sides check that the other belongs to their user,
as the kernel reports it: the socket's peer credentials, and the owner of the memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hmac
import logging
import mmap
import os
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from dbelief.errors import Rejected
from dbelief.security import named_socket
from dbelief.security.same_user import same_user

log = logging.getLogger(__name__)

HEADER_BYTES = 4096
"""The first page, which has the token; numbers begin on the next."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if sys.platform == "linux" else 0
_MOVE = 1 | 2  # MREMAP_MAYMOVE, and MREMAP_FIXED: to exactly this address
_ANONYMOUS = -1
"""In place of a descriptor: memory private to this process."""
_unavailable_logged = threading.Event()


class Block:
    """Memory that is mapped here while arrays over it are in use; made by `make_block` or `open_block`.

    Parameters
    ----------
    size
        Bytes, including the first page.
    name
        32 hexadecimal digits, under which it is offered; "" where no other process can open it.
    token
        Content at the start of its first page.
    fd
        Of the memory; the caller keeps its ownership.
    """

    def __init__(self, size: int, name: str, token: bytes, fd: int) -> None:
        self.size, self.name, self.token = size, name, token
        self._address = _map(size, fd)
        self._fd: int | None = None
        # At exit other threads may still access the mapping: it is left to the kernel.
        weakref.finalize(self, _libc().munmap, self._address, size).atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For NumPy: arrays over the block keep it mapped."""
        return {"data": (self._address, False), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def bytes(self, offset: int, length: int) -> np.ndarray:
        """(length,) bytes from `offset` on.

        Raises
        ------
        Rejected
            They overlap the first page or exceed the block.
        """
        if offset < HEADER_BYTES or offset + length > self.size:
            raise Rejected(f"{length} bytes at {offset} are not within a block of {self.size}")
        return np.asarray(self)[offset : offset + length]

    def offset_of(self, values: np.ndarray) -> int | None:
        """Offset of an array in the block, in bytes; None where it is elsewhere, or not contiguous."""
        offset: int = values.__array_interface__["data"][0] - self._address
        here = offset >= HEADER_BYTES and offset + values.nbytes <= self.size
        return offset if here and values.flags.c_contiguous else None

    # -- for a process that offers it -----------------------------------------------------------------------

    def hold(self, fd: int) -> None:
        """Take ownership of the descriptor, to offer it."""
        self._fd = fd

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Pass the descriptor to every process of this user that connects, within the `with` block.

        Raises
        ------
        OSError
            The socket cannot have a name here. The block stays private to this process.
        """
        assert self._fd is not None
        with ExitStack() as stack:
            try:
                door = stack.enter_context(named_socket.listening(self.name))
            except OSError:
                self.name = ""
                self.close()
                raise
            thread = threading.Thread(target=_pass_on, args=(door, self._fd), name="offer", daemon=True)
            thread.start()
            try:
                yield
            finally:
                door.shutdown(socket.SHUT_RDWR)  # wakes the thread
                thread.join()

    def renew(self) -> None:
        """Abandon the memory to the other processes that have it mapped, and map a copy at the same address.

        Arrays over the block keep their numbers, and no longer see writes of other processes. The copy has a new name.
        Where no memory for it can be shared, it is private to this process. Only reads of the block may run
        concurrently. Cost: one copy.

        Raises
        ------
        OSError
            There is no memory at all.
        """
        self.close()
        self.name = ""
        fd, name, token = _ANONYMOUS, "", b""
        try:
            fd, name, token = _memory(self.size)
        except OSError as error:
            log_unavailable(self.size, error)
        try:
            address = _map(self.size, fd)
            copy = np.frombuffer(memoryview((ctypes.c_char * self.size).from_address(address)), np.uint8)
            copy[HEADER_BYTES:] = np.asarray(self)[HEADER_BYTES:]
            _check(_libc().mremap(address, self.size, self.size, _MOVE, self._address), "mremap")
        except BaseException:
            if fd != _ANONYMOUS:
                os.close(fd)
            raise
        if fd != _ANONYMOUS:
            self.name, self.token = name, token
            self.hold(fd)

    def close(self) -> None:
        """Close the descriptor; the memory stays."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def make_block(room: int) -> Block | None:
    """Make a block with `room` bytes behind its first page; None, with a log line, where that is not possible.

    The line is logged once in a process.
    """
    named_socket.remove_stale_names()
    size = HEADER_BYTES + room
    try:
        fd, name, token = _memory(size)
        block = Block(size, name, token, fd)
    except OSError as error:
        log_unavailable(size, error)
        return None
    block.hold(fd)
    return block


def open_block(name: str, token: bytes, size: int) -> Block:
    """Open a block that another process offers. It can be offered in turn, under a name of its own.

    Raises
    ------
    Rejected
        No process of this user offers it here, or it is not safe to map; the message has the reason.
    """
    if not named_socket.is_name(name) or len(token) != named_socket.TOKEN_BYTES:
        raise Rejected("no block has such a name or token")
    try:
        fd = _fetch(name)
    except (FileNotFoundError, ConnectionRefusedError):
        raise Rejected("no such block is on this host") from None
    except OSError as error:
        raise Rejected(f"the block cannot be fetched: {error.strerror or error}") from None
    try:
        _check_ours(fd, size)
        if not hmac.compare_digest(os.pread(fd, named_socket.TOKEN_BYTES, 0), token):
            raise Rejected("the block has another token")
        block = Block(size, named_socket.new_name(), token, fd)
    except OSError as error:
        os.close(fd)
        raise Rejected(f"the block cannot be mapped: {error.strerror}") from None
    except BaseException:
        os.close(fd)
        raise
    block.hold(fd)
    return block


def block_of(values: np.ndarray) -> Block | None:
    """The block that an array is over; None where it is in other memory."""
    base: object = values
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Block) else None


def _pass_on(door: socket.socket, fd: int) -> None:
    """Send a descriptor to every caller of this user, until the socket is shut down."""
    while True:
        try:
            call, _ = door.accept()
        except OSError:
            return
        with call, suppress(OSError):
            if same_user(call):
                socket.send_fds(call, [b"\0"], [fd])


def _fetch(name: str) -> int:
    """Fetch the descriptor that a process offers under a name."""
    with named_socket.connect(name) as call:
        _, found, _, _ = socket.recv_fds(call, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not found:
        raise OSError("no descriptor came")
    return found[0]


def _check_ours(fd: int, size: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not _keeps_its_size(fd):
        raise Rejected("the block is not memory of this user's whose size is sealed")
    if found.st_size != size or found.st_blocks * 512 < size:
        raise Rejected(
            f"the block has {found.st_size} bytes, {found.st_blocks * 512} of them in memory, and not {size}"
        )


def _keeps_its_size(fd: int) -> bool:
    """Whether its size is sealed against shrinking: access to removed pages would kill this process."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # not a sealable file
        return False


def _memory(size: int) -> tuple[int, str, bytes]:
    """Make memory with all its pages, its size sealed, that begins with a token; returns descriptor, name and token."""
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no memory with a descriptor")
    fd = os.memfd_create("dbelief", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        token = named_socket.new_token()
        os.pwrite(fd, token, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, named_socket.new_name(), token


def log_unavailable(size: int, error: OSError) -> None:
    """Log, once in a process, that no block is available."""
    if not _unavailable_logged.is_set():
        _unavailable_logged.set()
        log.warning(
            f"no shared memory: {size / (1 << 20):.1f} MiB cannot be had or offered in {named_socket.FOLDER} "
            f"({error.strerror or error}); arrays that have none go over TCP, also between processes of one host"
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
    """Map a file, with all its pages at once: each would cost a page fault at its first access."""
    flags = mmap.MAP_POPULATE | (mmap.MAP_SHARED if fd != _ANONYMOUS else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _check(_libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0), "mmap")


def _check(address: int | None, what: str) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return address
