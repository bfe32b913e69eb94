"""Registry of a coordinator's state for failover; the one package that uses redis."""

from dbelief.process.clock import Clock

from .embedded import EmbeddedRegistry, embedded_available
from .memory import MemoryRegistry
from .registry import Registry
from .url import has_password

__all__ = [
    "EmbeddedRegistry",
    "MemoryRegistry",
    "Registry",
    "embedded_available",
    "has_password",
    "open_registry",
]


def open_registry(url: str, clock: Clock) -> Registry:
    """The registry at `url`; nothing is sent before the first call.

    Parameters
    ----------
    url
        `redis://`, `rediss://`, `unix:///path`, or `memory:` for the in-memory registry, which is private to this
        process.
    clock
        Clock of the in-memory registry's leases and the client's timeouts.

    Raises
    ------
    UserError
        The URL is none of these.
    """
    if url == "memory:":
        return MemoryRegistry(clock)
    from .server import RedisRegistry  # and with it redis-py

    return RedisRegistry(url, clock)
