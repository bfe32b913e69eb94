"""Ranks as processes that are joined by sockets: the replicas of one job, which form groups and form them anew.

Two connections between any two ranks: one for messages, and one on which a rank that fails tells why, and one that
leaves says goodbye. No thread: what can move without waiting moves in `start`, and everything in `wait`.
"""

from .engine import SocketEngine
from .listener import Listener
from .mesh import connect_mesh
from .tls import TlsContexts

__all__ = ["Listener", "SocketEngine", "TlsContexts", "connect_mesh"]
