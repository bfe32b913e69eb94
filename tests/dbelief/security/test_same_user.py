"""The user at the other end of a socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dbelief.security.same_user import same_user


def test_this_users_socket_is_accepted() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert same_user(near)


def test_what_reports_no_user_is_accepted() -> None:
    with socket.socket(socket.AF_INET) as other:
        assert same_user(other)


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    mine = os.geteuid()
    with near, far:
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert not same_user(near)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_kernel_says_who_connected_to_a_name_that_is_open_to_all(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    name = f"/proc/{os.getpid()}/fd/{(folder := os.open(tmp_path, os.O_PATH))}/door"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(name)
        os.chmod(name, 0o777)
        door.listen()
        with socket.socket(socket.AF_UNIX) as call:
            os.seteuid(65534)
            try:
                call.connect(f"/proc/self/fd/{folder}/door")
            finally:
                os.seteuid(0)
            with (accepted := door.accept()[0]):
                assert not same_user(accepted)
                assert same_user(call)  # the listener is this user's
    os.close(folder)
