"""Credentials that a process presents, and checks of others: a folder that `dbelief certs` made for its role."""

from __future__ import annotations

import datetime
import hashlib
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from dbelief.errors import UserError

ROLES = ("coordinator", "ps", "worker")
"""Processes of a job."""
PERSONS = ("operator", "viewer")
"""Roles of people and their tools: the operator may stop and scale a job, the viewer only read its status."""
DOMAIN = "dbelief"
"""Domain after a role in the DNS name of its certificate."""
SERVER = f"server.{DOMAIN}"
"""DNS name in every certificate of a gRPC server, besides its role's."""
AUTHORITY, CERTIFICATE, KEY, TOKEN, TOKENS, REGISTRY_PASSWORD = (
    "ca.crt",
    "tls.crt",
    "tls.key",
    "token",
    "tokens",
    "registry-password",
)


def digest(token: str) -> str:
    """Hash that a server stores of a token: 64 characters, from which the token cannot be recovered."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True)
class Credentials:
    """One role's credentials, read and checked.

    Attributes
    ----------
    authority, certificate, key
        PEM.
    token
        Sent with every call; "" where the role makes none.
    roles
        Role by the digest of its token: known to servers; empty for other roles.
    registry_password
        Of the registry; "" where the role does not use it.
    """

    folder: Path
    role: str
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    token: str = field(repr=False)
    roles: dict[str, str] = field(repr=False)
    registry_password: str = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Credentials:
        """Read a folder.

        Raises
        ------
        UserError
            A file is missing or invalid, or the certificate has expired; names it.
        """
        folder = folder.absolute()
        certificate = _read(folder / CERTIFICATE)
        found = cls(
            folder=folder,
            role=_role(folder / CERTIFICATE, certificate),
            authority=_read(folder / AUTHORITY),
            certificate=certificate,
            key=_read(folder / KEY),
            token=_line(folder / TOKEN),
            roles=_roles(folder / TOKENS),
            registry_password=_line(folder / REGISTRY_PASSWORD),
        )
        found.context(ssl.Purpose.SERVER_AUTH)  # checks that the key matches the certificate, and the authority
        return found

    def role_of(self, token: str) -> str | None:
        """Role of a token; None: it is unknown."""
        return self.roles.get(digest(token))

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """TLS context that requires certificates of the job's authority on both sides.

        Parameters
        ----------
        purpose
            `SERVER_AUTH` for outgoing connections, `CLIENT_AUTH` for incoming ones.
        """
        context = self._context(purpose)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def web_context(self) -> ssl.SSLContext:
        """TLS context for browsers, which have no client certificate."""
        return self._context(ssl.Purpose.CLIENT_AUTH)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(purpose, cadata=self.authority.decode("ascii"))
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY)
        except (ssl.SSLError, ValueError) as error:
            raise UserError(f"credentials {self.folder}: {AUTHORITY}, {CERTIFICATE} and {KEY}: {error}") from error
        return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"credentials: there is no {path}; `dbelief certs` makes one folder for each role") from None
    except OSError as error:
        raise UserError(f"credentials {path}: {error.strerror}") from error


def _line(path: Path) -> str:
    return _read(path).decode(errors="replace").strip() if path.exists() else ""


def _role(path: Path, certificate: bytes) -> str:
    """Role that a certificate names."""
    from cryptography import x509  # a tenth of a second, not needed by commands without credentials
    from cryptography.x509.oid import NameOID

    try:
        read = x509.load_pem_x509_certificate(certificate)
        (name,) = read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError as error:
        raise UserError(f"credentials {path}: no certificate that names a role") from error
    ends = read.not_valid_after_utc
    if ends <= datetime.datetime.now(datetime.UTC):
        raise UserError(f"credentials {path}: the certificate ended at {ends:%Y-%m-%d %H:%M} UTC")
    return str(name.value)


def _roles(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(_read(path).decode(errors="replace").splitlines(), 1):
        role, _, known = line.partition(" ")
        if role not in (*ROLES, *PERSONS) or len(known) != len(digest("")):
            raise UserError(f"credentials {path}, line {number}: wanted a role, a space and a token's SHA-256")
        found[known] = role
    return found
