"""The status page: how the job goes, in a browser. It can only be looked at, and nothing comes from elsewhere."""

from .application import StatusPage

__all__ = ["StatusPage"]
