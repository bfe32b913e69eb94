"""What a process shows to others, and checks of them: a folder that `dbelief certs` made for its role."""

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
"""People, and what looks for them: one may stop and scale a job, the other look at it."""
DOMAIN = "dbelief"
"""What follows a role in the name that its certificate is for."""
SERVER = f"server.{DOMAIN}"
"""The name that every certificate of a server of gRPC is for, besides its role's."""
AUTHORITY, CERTIFICATE, KEY, TOKEN, TOKENS, REGISTRY_PASSWORD = (
    "ca.crt",
    "tls.crt",
    "tls.key",
    "token",
    "tokens",
    "registry-password",
)


def digest(token: str) -> str:
    """What a server keeps of a token: 64 characters, of which the token cannot be told."""
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
        Role by the digest of its token: what a server knows of others; empty for the rest.
    registry_password
        Of the registry; "" where the role does not ask it.
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
        Mistake
            A file is missing, or is not what it should be, or the certificate has ended; names it.
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
        found.context(ssl.Purpose.SERVER_AUTH)  # the key is the certificate's, and the authority is one
        return found

    def role_of(self, token: str) -> str | None:
        """Whose token this is; None: nobody's."""
        return self.roles.get(digest(token))

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """TLS where both sides show certificates of the job's authority.

        Parameters
        ----------
        purpose
            `SERVER_AUTH` to call others, `CLIENT_AUTH` to be called.
        """
        context = self._context(purpose)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def web_context(self) -> ssl.SSLContext:
        """TLS for browsers, which have no certificate to show."""
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
    """Whose certificate it is."""
    from cryptography import x509  # a tenth of a second, which commands without credentials need not wait
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
