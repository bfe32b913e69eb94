from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.security import current, identity, load, may_listen

BEYOND = ["0.0.0.0:7070", "[::]:7070", "10.0.0.1:0", "coordinator:7070"]
HERE = ["127.0.0.1:7070", "127.8.9.1:0", "[::1]:7070", "localhost:7070"]


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without credentials, as it begins."""
    monkeypatch.delenv(identity.FOLDER, raising=False)
    monkeypatch.setattr(identity._Identity, "loaded", None)
    monkeypatch.setattr(identity._Identity, "insecure", False)
    monkeypatch.setattr(identity._Identity, "warned", set())


@pytest.mark.parametrize("address", BEYOND)
def test_insecure_public_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"without TLS and a token.*--credentials.*--insecure"):
        may_listen(address)


@pytest.mark.parametrize("address", HERE)
def test_this_machine_may_call_and_nothing_is_said_of_it(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    may_listen(address)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("address", BEYOND)
def test_with_credentials_all_may_call(
    address: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    load(folders["ours"] / "ps", ("ps",))
    may_listen(address)
    assert capsys.readouterr().err == ""


def test_insecure_opening_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    identity.allow_insecure()
    for _ in range(2):
        may_listen("0.0.0.0:7070")
    said = capsys.readouterr().err
    assert said == "--insecure: 0.0.0.0:7070 is open to anybody who reaches it, without TLS and without a token\n"


def test_another_roles_credentials_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="they are for worker, wanted coordinator"):
        load(folders["ours"] / "worker", ("coordinator",))
    assert current() is None


def test_credentials_come_from_the_environment(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(identity.FOLDER, str(folders["ours"] / "worker"))
    mine = current()
    assert mine is not None
    assert mine.role == "worker"
