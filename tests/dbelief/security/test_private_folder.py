"""The secret that a user's processes share: made once, in a folder that is private to the user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.security import private_folder
from dbelief.security.private_folder import SECRET, make_private, make_socket_folder, user_secret


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the secret lies; the temporary folder is another one of the test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    user_secret.cache_clear()
    yield tmp_path / "state" / "dbelief"
    user_secret.cache_clear()


def fresh() -> bytes:
    """As another process reads it."""
    user_secret.cache_clear()
    return user_secret()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_made_once_and_is_its_users_alone(home: Path) -> None:
    assert fresh() == fresh() == (home / SECRET).read_bytes()
    assert len(fresh()) == 32
    assert (mode(home), mode(home / SECRET)) == (0o700, 0o600)
    assert os.listdir(home) == [SECRET]


def test_processes_that_begin_at_once_share_one(home: Path) -> None:
    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: user_secret.__wrapped__(), range(8)))
        assert len(found) == 1
        (home / SECRET).unlink()


def test_unwritable_home_falls_back_to_temporary_folder(home: Path, tmp_path: Path) -> None:
    home.parent.write_text("no folder")
    assert fresh() == (tmp_path / f"dbelief-{os.geteuid()}" / SECRET).read_bytes()


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_folder_that_others_may_have_made_is_not_used(how: str, home: Path, tmp_path: Path) -> None:
    if how == "open":
        home.mkdir(parents=True)
        home.chmod(0o755)
    elif how == "link":
        home.parent.mkdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "elsewhere")
    else:
        home.mkdir(parents=True, mode=0o700)
        (home / SECRET).write_bytes(bytes(32))
        (home / SECRET).chmod(0o644)
    assert fresh() == (tmp_path / f"dbelief-{os.geteuid()}" / SECRET).read_bytes()


def test_error_lists_all_folders_tried(home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True, mode=0o700)
    (home / SECRET).write_bytes(b"short")
    (home / SECRET).chmod(0o600)
    (tmp_path / f"dbelief-{os.geteuid()}").write_text("in the way")
    with pytest.raises(UserError, match=r"state/dbelief: secret is not 32 bytes long.*; .*dbelief-\d+: File exists"):
        fresh()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make another user's folder")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PermissionError, match="is another user's, or open to others"):
        make_private(tmp_path / "theirs")


DEEP = "x" * 100


def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / DEEP
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return folder


def test_a_socket_is_in_the_temporary_folder_where_its_name_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder, "LONGEST_SOCKET_PATH", len(os.fsencode(tmp_path)) + len("/one-12345678/s"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/self/none")
    folder = make_socket_folder("one-", "s")
    assert folder.parent == tmp_path
    assert mode(folder) == 0o700


def test_under_a_deep_one_it_is_in_the_users_folder_or_in_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = deep(tmp_path, monkeypatch)
    monkeypatch.setattr(private_folder, "LONGEST_SOCKET_PATH", len(os.fsencode(tmp_path)) + len("/two/one-12345678/s"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(private_folder, "SHORT_FOLDERS", (str(tmp_path / "two"),))
    assert make_socket_folder("one-", "s").parent == tmp_path / "two"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "one"))
    assert make_socket_folder("one-", "s").parent == tmp_path / "one"
    assert list(below.iterdir()) == []


def test_without_any_one_line_names_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = deep(tmp_path, monkeypatch)
    monkeypatch.setattr(private_folder, "LONGEST_SOCKET_PATH", 20)
    monkeypatch.setattr(private_folder, "SHORT_FOLDERS", ("/proc/self/none",))
    with pytest.raises(UserError) as caught:
        make_socket_folder("one-", "s")
    assert str(caught.value) == (
        f"no folder for a socket ({below}: longer than the 20 bytes of a socket's path; /proc/self/none: No such "
        "file or directory): set TMPDIR to a shorter one"
    )
    assert list(below.iterdir()) == []
