"""`dbelief certs`: an authority for one job, a certificate for each role, tokens, and the registry's configuration.

A cluster with its own authority can use that one's files under the same names instead.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dbelief.errors import UserError

from .credentials import (
    AUTHORITY,
    CERTIFICATE,
    DOMAIN,
    KEY,
    PERSONS,
    REGISTRY_PASSWORD,
    ROLES,
    SERVER,
    TOKEN,
    TOKENS,
    digest,
)

PROMETHEUS, REGISTRY = "prometheus", "registry"
"""Two roles that need a certificate, and make no calls of the system."""
SERVERS = ("coordinator", "ps")
"""Roles that run gRPC servers, and so store the digests of all tokens."""
AUTHORITY_KEY, REGISTRY_CONFIGURATION = "ca.key", "registry.conf"
FILES = (AUTHORITY, CERTIFICATE, KEY, TOKEN, TOKENS, REGISTRY_PASSWORD, REGISTRY_CONFIGURATION)
CLOCKS_APART = datetime.timedelta(hours=1)
"""Time by which certificates are backdated: machines' clocks differ."""

_REGISTRY = """# Valkey or Redis 7 for one dbelief job: TLS on both sides, a password, and on disk before it answers.
port 0
tls-port 6379
tls-ca-cert-file {folder}/ca.crt
tls-cert-file {folder}/tls.crt
tls-key-file {folder}/tls.key
tls-auth-clients yes
requirepass {password}
save ""
appendonly yes
appendfsync always
"""


@dataclass(frozen=True)
class Authority:
    """Certificate authority, which signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    days: float

    @classmethod
    def make(cls, days: float) -> Authority:
        """Make an authority with a unique name, which distinguishes those of two jobs."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"{DOMAIN} development authority {secrets.token_hex(4)}")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        built = (
            _builder(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return cls(built.sign(key, hashes.SHA256()), key, days)

    def issue(self, role: str, names: Sequence[str]) -> tuple[bytes, bytes]:
        """Issue certificate and key of a role, PEM, for these DNS names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        built = (
            _builder(_name(role), self.certificate.subject, key, self.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if names:
            built = built.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        return _pem(built.sign(self.key, hashes.SHA256())), _pem_key(key)


def make_credentials(folder: Path, days: float, registry_hosts: Sequence[str], page_hosts: Sequence[str]) -> bool:
    """Make an authority and a folder for each role in `folder`; where it has an authority, change nothing.

    Parameters
    ----------
    days
        Validity of the certificates.
    registry_hosts, page_hosts
        Names and addresses of the registry, and of the coordinator's status page.

    Returns
    -------
    bool
        Whether they were made.

    Raises
    ------
    UserError
        The folder cannot be written, or has other files under a role's name.
    """
    if (folder / AUTHORITY).exists():
        return False
    making = folder / ".making"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_ours(folder)
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        _fill(making, Authority.make(days), registry_hosts, page_hosts)
        # The authority's certificate is renamed last: if it exists, everything does.
        for path in sorted(making.iterdir(), key=lambda path: path.name == AUTHORITY):
            shutil.rmtree(folder / path.name, ignore_errors=True)
            path.rename(folder / path.name)
        making.rmdir()
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}") from error
    return True


def _check_ours(folder: Path) -> None:
    """Check that only files of an interrupted attempt would be replaced, and no other ones."""
    for role in (*ROLES, *PERSONS, PROMETHEUS, REGISTRY):
        place = folder / role
        strange = [path for path in place.iterdir() if path.name not in FILES] if place.is_dir() else []
        if strange or (place.exists() and not place.is_dir()):
            raise UserError(
                f"{strange[0] if strange else place} is in the way: give `dbelief certs` a folder of its own"
            )


def _fill(folder: Path, authority: Authority, registry_hosts: Sequence[str], page_hosts: Sequence[str]) -> None:
    names = {
        "coordinator": (f"coordinator.{DOMAIN}", SERVER, *page_hosts),
        "ps": (f"ps.{DOMAIN}", SERVER),
        "worker": (f"worker.{DOMAIN}",),
        REGISTRY: tuple(registry_hosts),
    }
    tokens = {role: secrets.token_urlsafe(32) for role in (*ROLES, *PERSONS)}
    known = "".join(f"{role} {digest(token)}\n" for role, token in tokens.items())
    password = secrets.token_urlsafe(32)
    ours = _pem(authority.certificate)
    for role in (*ROLES, *PERSONS, PROMETHEUS, REGISTRY):
        certificate, key = authority.issue(role, names.get(role, ()))
        files = {AUTHORITY: ours, CERTIFICATE: certificate, KEY: key}
        if role in tokens:
            files[TOKEN] = f"{tokens[role]}\n".encode()
        if role in SERVERS:
            files[TOKENS] = known.encode()
        if role == "coordinator":
            files[REGISTRY_PASSWORD] = f"{password}\n".encode()
        if role == REGISTRY:
            files[REGISTRY_CONFIGURATION] = _REGISTRY.format(folder="/credentials", password=password).encode()
        (folder / role).mkdir(mode=0o700)
        for name, content in files.items():
            _write(folder / role / name, content)
    _write(folder / AUTHORITY_KEY, _pem_key(authority.key))
    _write(folder / AUTHORITY, ours)


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
