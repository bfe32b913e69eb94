"""Communication between ranks: one `Communicator` over engines of threads, MPI, NCCL or sockets."""

from .communicator import Communicator
from .engine import Engine, Message
from .threads import run_ranks

__all__ = ["Communicator", "Engine", "Message", "run_ranks"]
