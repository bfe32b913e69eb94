"""Certificates, tokens and permissions, and the addresses that a process without them may listen on.

A job that spans several machines has its own certificate authority, and a process the folder that `dbelief certs` made
for its role. Its certificate proves that the process belongs to the job, and names its role: callers check the role,
never a host's name, for containers have no stable one. Its token defines what it may call (`permissions`).
`docs/explanation/security.md` lists the attacks that each of these prevents.
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
