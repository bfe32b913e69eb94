"""Who may talk to whom: certificates, tokens and rights, and where a process without them may listen.

A job that leaves one machine has a certificate authority of its own, and a role's process the folder that `dbelief
certs` made for that role. Its certificate proves that a process belongs to the job, and names its role: callers check
the role, never a host's name, for containers have none that lasts. Its token says what it may ask of others
(`rights`). `docs/security.md` tells against what each of these holds.
"""

from .credentials import DOMAIN, PERSONS, ROLES, SERVER, Credentials
from .identity import current, is_loopback, load, may_listen, must_show
from .loopback import TOKEN_BYTES, Loopback, Verdict, loopback_address

__all__ = [
    "DOMAIN",
    "PERSONS",
    "ROLES",
    "SERVER",
    "TOKEN_BYTES",
    "Credentials",
    "Loopback",
    "Verdict",
    "current",
    "is_loopback",
    "load",
    "loopback_address",
    "may_listen",
    "must_show",
]
