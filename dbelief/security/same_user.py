"""User at the other end of a Unix socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import struct

_PEER = struct.Struct("=iII")
"""Process, user, group."""


def same_user(one: socket.socket) -> bool:
    """Whether the other end of a Unix socket belongs to this user; True for other sockets, which do not report it."""
    if one.family != socket.AF_UNIX:
        return True
    _, user, _ = _PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.geteuid())
