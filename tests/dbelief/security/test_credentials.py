import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.security import PERSONS, ROLES, Credentials


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A coordinator's, to be spoilt."""
    return Path(shutil.copytree(folders["ours"] / "coordinator", tmp_path / "coordinator"))


def test_server_identifies_roles_by_token(ours: Callable[[str], Credentials]) -> None:
    for server in ("coordinator", "ps"):
        known = ours(server)
        assert {role: known.role_of(ours(role).token) for role in (*ROLES, *PERSONS)} == {
            role: role for role in (*ROLES, *PERSONS)
        }
        for strange in ("", "x", ours("worker").token[:-1], ours("worker").token + "\n"):
            assert known.role_of(strange) is None
    assert ours("worker").roles == {}


def test_nothing_secret_is_shown(ours: Callable[[str], Credentials]) -> None:
    mine = ours("coordinator")
    shown = f"{mine!r} {mine}"
    for secret in (mine.token, mine.registry_password, mine.key.decode(), *mine.roles):
        assert secret
        assert secret not in shown


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"there is no .*/coordinator/{name}; `dbelief certs`"):
        Credentials.read(folder)


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff no certificate")
    with pytest.raises(UserError, match=rf"credentials .*{name}"):
        Credentials.read(folder)


def test_key_of_another_certificate_is_refused(folder: Path, folders: dict[str, Path]) -> None:
    shutil.copy(folders["ours"] / "worker" / "tls.key", folder / "tls.key")
    with pytest.raises(UserError, match=r"key values mismatch|KEY_VALUES_MISMATCH"):
        Credentials.read(folder)


def test_expired_certificate_is_reported(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"ended/?.*tls.crt: the certificate ended at 20\d\d-\d\d-\d\d \d\d:\d\d UTC"):
        Credentials.read(folders["ended"] / "ps")


@pytest.mark.parametrize("line", ["king " + 64 * "0", "worker", "worker abc"])
def test_a_wrong_line_of_tokens_is_named(folder: Path, line: str) -> None:
    tokens = folder / "tokens"
    tokens.write_text(tokens.read_text() + line)
    with pytest.raises(UserError, match="tokens, line 6: wanted a role"):
        Credentials.read(folder)
