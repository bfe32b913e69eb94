import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from dbelief.errors import UserError
from dbelief.security import ROLES, Credentials
from dbelief.security.certificates import make_credentials


def test_each_role_gets_only_the_files_it_needs(folders: dict[str, Path]) -> None:
    plain = {"ca.crt", "tls.crt", "tls.key"}
    more = {
        "coordinator": {"token", "tokens", "registry-password"},
        "ps": {"token", "tokens"},
        "worker": {"token"},
        "operator": {"token"},
        "viewer": {"token"},
        "prometheus": set(),
        "registry": {"registry.conf"},
    }
    found = {path.name: {file.name for file in path.iterdir()} for path in folders["ours"].iterdir() if path.is_dir()}
    assert found == {role: plain | extra for role, extra in more.items()}


def test_credentials_are_private_to_the_user(folders: dict[str, Path]) -> None:
    for path in folders["ours"].rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


@pytest.mark.parametrize(
    ("role", "names", "serves"),
    [
        ("coordinator", {"coordinator.dbelief", "server.dbelief", "localhost"}, True),
        ("ps", {"ps.dbelief", "server.dbelief"}, True),
        ("worker", {"worker.dbelief"}, True),
        ("registry", {"registry", "localhost"}, True),
        ("operator", set(), False),
    ],
)
def test_a_certificate_is_for_its_roles_names(
    folders: dict[str, Path], role: str, names: set[str], serves: bool
) -> None:
    read = x509.load_pem_x509_certificate((folders["ours"] / role / "tls.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folders["ours"] / "ca.crt").read_bytes())
    read.verify_directly_issued_by(authority)
    extensions = {type(one.value): one.value for one in read.extensions}
    told = extensions.get(x509.SubjectAlternativeName)
    assert (set(told.get_values_for_type(x509.DNSName)) if told is not None else set()) == names
    usages = set(extensions[x509.ExtendedKeyUsage])
    assert usages == {ExtendedKeyUsageOID.CLIENT_AUTH} | ({ExtendedKeyUsageOID.SERVER_AUTH} if serves else set())
    assert not extensions[x509.BasicConstraints].ca


def test_existing_credentials_are_kept(tmp_path: Path) -> None:
    assert make_credentials(tmp_path, 1.0, [], [])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not make_credentials(tmp_path, 1.0, [], [])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_interrupted_creation_starts_over(tmp_path: Path) -> None:
    (tmp_path / ".making").mkdir()
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "token").write_text("half")
    assert make_credentials(tmp_path, 1.0, [], [])
    assert Credentials.read(tmp_path / "worker").token != "half"
    assert not (tmp_path / ".making").exists()


def test_two_jobs_share_nothing(folders: dict[str, Path]) -> None:
    for role in ROLES:
        one, other = (Credentials.read(folders[name] / role) for name in ("ours", "others"))
        assert one.token != other.token
        assert one.authority != other.authority
    coordinator = Credentials.read(folders["ours"] / "coordinator")
    assert coordinator.role_of(Credentials.read(folders["others"] / "operator").token) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/certs: Not a directory"):
        make_credentials(tmp_path / "file" / "certs", 1.0, [], [])


def test_unrelated_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    work = tmp_path / "worker" / "life.py"
    work.write_text("mine")
    with pytest.raises(UserError, match=r"worker/life.py is in the way: give `dbelief certs` a folder of its own"):
        make_credentials(tmp_path, 1.0, [], [])
    assert work.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["worker"]
