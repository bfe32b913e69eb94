"""Registry on any server with the Redis protocol (Redis, Valkey), through redis-py.

Keys of a job; a cluster chooses the slot by their common `{job}`, so that one script may access all three:

    dbelief:{job}:epoch     string   highest epoch ever used or reported
    dbelief:{job}:leader    hash     owner, epoch; expires with the lease
    dbelief:{job}:values    hash     the coordinator's stored values

Leases run by the server's clock. Every read-modify-write is a Lua script, which the server runs atomically. Epochs
pass through the scripts as strings: a Lua number holds 53 bits only.

Every call is idempotent enough to be retried, since a lost reply does not show whether the call was received: a second
`acquire` by the same owner just uses up an epoch, the others return the same result again.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import Redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from dbelief.errors import Rejected, RuntimeFailure, Unavailable, UserError
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import unknown_host
from dbelief.security import current, is_loopback
from dbelief.security.credentials import AUTHORITY, CERTIFICATE, KEY

from .registry import check_job, check_ttl, check_values, stale
from .url import without_password

T = TypeVar("T")

_ACQUIRE = """
local owner = redis.call('HGET', KEYS[2], 'owner')
if owner and owner ~= ARGV[1] then return false end
redis.call('INCR', KEYS[1])
local epoch = redis.call('GET', KEYS[1])
redis.call('HSET', KEYS[2], 'owner', ARGV[1], 'epoch', epoch)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return epoch
"""
_HOLDER = """
local owner = redis.call('HGET', KEYS[2], 'owner')
if not owner then return false end
return {owner, redis.call('PTTL', KEYS[2])}
"""
_RENEW = """
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[2], ARGV[2])
"""
# Arguments: epoch, count of the values to store, name, value, name, value, ..., names to delete.
# Returns '' when stored, else the leader's epoch ('-' if there is no leader).
_WRITE = """
local epoch = redis.call('HGET', KEYS[2], 'epoch')
if epoch ~= ARGV[1] then return epoch or '-' end
local stored = 2 + 2 * tonumber(ARGV[2])
local function each(command, first, last)  -- one command for many: the server logs each with its key; unpack is limited
  for i = first, last, 1000 do redis.call(command, KEYS[3], unpack(ARGV, i, math.min(i + 999, last))) end
end
each('HSET', 3, stored)
each('HDEL', stored + 1, #ARGV)
return ''
"""
_RAISE = """
local highest = redis.call('GET', KEYS[1]) or '0'
if tonumber(highest) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 0
"""
_RELEASE = """
if redis.call('HGET', KEYS[2], 'epoch') == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 0
"""


class RedisRegistry:
    """A `Registry` on a Redis or Valkey server.

    Parameters
    ----------
    url
        `redis://`, `rediss://` (TLS) or `unix:///path`; options of redis-py may follow as `?name=value`. This process's
        credentials are the default for what it omits.
    clock
        Clock of the client's timeouts.
    timeout_s
        For one connection attempt and for one reply.
    patience_s
        Time for which a call is retried while the server cannot be reached, for example during its restart.

    Raises
    ------
    UserError
        The URL is none of these. Nothing is sent yet.
    """

    def __init__(self, url: str, clock: Clock, *, timeout_s: float = 2.0, patience_s: float = 3.0) -> None:
        self._place = f"registry {without_password(url)}"
        self._host = urlsplit(url).hostname or ""
        self._clock = clock
        self._patience_s = patience_s
        try:
            # Retries are made here, by the given clock, hence none inside redis-py.
            client: Any = Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                **_login(url),
            )
            client.connection_pool.make_connection()  # does not connect, but checks the options
        except (ValueError, TypeError):
            # `from None`: redis-py quotes parts of the URL, and a password may be among them
            raise UserError(
                f"{self._place}: not an address: give redis://, rediss:// or unix:///path, known options only"
            ) from None
        self._client = client
        self._scripts = {
            text: client.register_script(text) for text in (_ACQUIRE, _HOLDER, _RENEW, _WRITE, _RAISE, _RELEASE)
        }

    def acquire(self, job: str, owner: str, ttl_s: float) -> int | None:
        """Acquire the leader lease; see `Registry.acquire`."""
        epoch = self._run(_ACQUIRE, job, owner, check_ttl(ttl_s))
        return None if epoch is None else int(epoch)

    def holder(self, job: str) -> tuple[str, float] | None:
        """Owner and remaining seconds; see `Registry.holder`."""
        answer = self._run(_HOLDER, job)
        return None if answer is None else (answer[0].decode(), answer[1] / 1000)

    def renew(self, job: str, epoch: int, ttl_s: float) -> bool:
        """Extend the lease; see `Registry.renew`."""
        return bool(self._run(_RENEW, job, epoch, check_ttl(ttl_s)))

    def write(self, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        """Store all values or none; see `Registry.write`."""
        check_values(values)
        stored = {name: value for name, value in values.items() if value is not None}
        pairs = [part for pair in stored.items() for part in pair]
        deleted = [name for name, value in values.items() if value is None]
        leader = self._run(_WRITE, job, epoch, len(stored), *pairs, *deleted)
        if leader:
            raise Rejected(stale(job, epoch, None if leader == b"-" else int(leader)))

    def read(self, job: str) -> dict[str, bytes]:
        """All values stored for the job; see `Registry.read`."""
        key = self._keys(job)[2]
        values = self._ask(lambda: self._client.hgetall(key))
        return {name.decode(): value for name, value in values.items()}

    def raise_epoch(self, job: str, at_least: int) -> None:
        """Make later epochs higher than `at_least`; see `Registry.raise_epoch`."""
        self._run(_RAISE, job, at_least)

    def release(self, job: str, epoch: int) -> None:
        """Release the lease; see `Registry.release`."""
        self._run(_RELEASE, job, epoch)

    def close(self) -> None:
        """Close the connections; see `Registry.close`."""
        self._client.close()

    def _keys(self, job: str) -> tuple[str, str, str]:
        prefix = f"dbelief:{{{check_job(job)}}}:"
        return prefix + "epoch", prefix + "leader", prefix + "values"

    def _run(self, text: str, job: str, *arguments: str | int | bytes) -> Any:
        keys = self._keys(job)
        return self._ask(lambda: self._scripts[text](keys=keys, args=arguments))

    def _ask(self, call: Callable[[], T]) -> T:
        """Make one call, retry it while the server cannot be reached, and convert its errors to dbelief's."""
        until_s = self._clock.now() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                return call()
            except (
                redis_errors.AuthenticationError,
                redis_errors.AuthorizationError,
                redis_errors.NoPermissionError,
            ) as error:
                raise UserError(f"{self._place} refuses the login: {_line(error)}") from error
            except (redis_errors.ConnectionError, redis_errors.TimeoutError) as error:
                if self._clock.now() + pause_s > until_s:
                    raise Unavailable(f"{self._place} does not answer: {self._why(error)}") from error
            except redis_errors.RedisError as error:
                raise RuntimeFailure(f"{self._place}: {_line(error)}") from error
            self._clock.wait(runtime.event(), pause_s)
            pause_s = min(2 * pause_s, 0.5)

    def _why(self, error: Exception) -> str:
        name = error.__context__
        return unknown_host(self._host, name) if isinstance(name, socket.gaierror) else _line(error)


def _login(url: str) -> dict[str, Any]:
    """Client options from this process's credentials, below the URL's own: a password; for rediss:// certificates."""
    mine = current()
    if mine is None:
        return {}
    options: dict[str, Any] = {}
    if mine.registry_password and "@" not in url:
        if url.startswith("redis:") and not is_loopback(urlsplit(url).hostname or ""):
            raise UserError(f"registry {without_password(url)}: its password would travel readable; use rediss://")
        options["password"] = mine.registry_password
    if url.startswith("rediss:"):
        names = {"ssl_ca_certs": AUTHORITY, "ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY}
        options |= {option: str(mine.folder / name) for option, name in names.items()}
    return options


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
