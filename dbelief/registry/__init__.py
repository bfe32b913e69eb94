"""What a coordinator keeps so that another could take over; the one place that knows redis."""

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
        `redis://`, `rediss://`, `unix:///path`, or `memory:` for the in-memory twin, which no other process
        can see.
    clock
        What the twin's leases and the client's patience run by.

    Raises
    ------
    Mistake
        The URL is none of these.
    """
    if url == "memory:":
        return MemoryRegistry(clock)
    from .server import RedisRegistry  # and with it redis-py

    return RedisRegistry(url, clock)
