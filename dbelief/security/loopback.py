"""Tokens of the calls between one user's processes on loopback, where there are no credentials.

A token is a MAC, keyed by the user's secret, over the called address and the time. The secret itself is never sent. A
process of another user that listens on the port of an exited server receives tokens for that port only, and these are
older than the next server there, which refuses them.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
import struct
import time
from pathlib import Path

from dbelief.process.terminal.console import host_and_port

from .private_folder import user_secret

TOKEN = struct.Struct("<Q32s")
"""Creation time, in nanoseconds since the machine started, and the MAC."""
TOKEN_BYTES = TOKEN.size
SAME_NS = 1_000_000_000
"""Time for which a client reuses a text: gRPC compresses metadata that it has sent before on a connection."""
SEEN = 1_024
"""Maximum number of valid texts that a server caches."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Differs after each start of the machine, which is also the zero of the time."""


class Verdict(enum.Enum):
    """Result of a token check."""

    RIGHT, WRONG = "right", "wrong"
    EARLIER = "earlier"
    """Valid, but made before this server listened: the sender may retry with a new one."""


class Loopback:
    """Maker and checker of the tokens of calls to one address.

    Parameters
    ----------
    address
        As `loopback_address` returns it. A server makes its own once it listens.
    since
        Time when the server began to listen, in nanoseconds of `time.monotonic_ns`; None: now.

    Raises
    ------
    UserError
        There is no folder for the user's secret.
    """

    def __init__(self, address: str, since: int | None = None) -> None:
        self._secret = user_secret()
        self._about = f"{_boot()} {address} ".encode()
        self._since = time.monotonic_ns() if since is None else since
        self._given = "", 0  # the last token as text, and its creation time
        self._right: set[str] = set()  # valid texts, which stay valid

    def token(self) -> bytes:
        """A token for a call that starts now. Cost: 10 us."""
        now = time.monotonic_ns()
        return TOKEN.pack(now, self._mac(now))

    def text(self) -> str:
        """A token as text, for the metadata of a call: reused for `SAME_NS`. Cost: below 1 us when reused."""
        text, made = self._given
        if not text or time.monotonic_ns() - made > SAME_NS:
            text, made = self._given = self.token().hex(), time.monotonic_ns()
        return text

    def check_text(self, text: str) -> Verdict:
        """As `check`, of a token as text. Cost: below 1 us where it is cached."""
        if text in self._right:
            return Verdict.RIGHT
        try:
            verdict = self.check(bytes.fromhex(text))
        except ValueError:
            return Verdict.WRONG
        if verdict is Verdict.RIGHT:
            if len(self._right) >= SEEN:
                self._right.clear()
            self._right.add(text)
        return verdict

    def check(self, token: bytes) -> Verdict:
        """Whether a call comes from a process of this user. Cost: 10 us."""
        if len(token) != TOKEN.size:
            return Verdict.WRONG
        made, mac = TOKEN.unpack(token)
        if made > time.monotonic_ns() or not hmac.compare_digest(mac, self._mac(made)):
            return Verdict.WRONG
        return Verdict.RIGHT if made >= self._since else Verdict.EARLIER

    def _mac(self, made: int) -> bytes:
        return hmac.digest(self._secret, self._about + made.to_bytes(8, "little"), "sha256")


def loopback_address(address: str) -> str | None:
    """`host:port` in a canonical form for both ends, with an IP address; None where it is not on loopback.

    Raises
    ------
    UserError
        The address is invalid.
    """
    host, port = host_and_port(address)
    try:
        # "localhost" may resolve to two addresses, and another user may listen on one of them.
        found = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return None
    if not found.is_loopback:
        return None
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
