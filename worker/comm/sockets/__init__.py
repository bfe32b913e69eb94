"""Engine for ranks that are processes connected by sockets: the replicas of one job, which form and re-form groups.

There are two connections between any two ranks. One transfers messages. On the other one a rank that fails sends the
cause, and a rank that leaves sends a goodbye. There is no thread: `start` transfers what it can without blocking, and
`wait` transfers the rest.
"""

from .engine import SocketEngine
from .listener import Listener
from .mesh import connect_mesh
from .tls import TlsContexts

__all__ = ["Listener", "SocketEngine", "TlsContexts", "connect_mesh"]
