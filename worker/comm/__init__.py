"""How the ranks of one model replica talk: one `Comm` over engines of threads, MPI or NCCL."""

from .communicator import Communicator
from .engine import Engine, Message
from .threads import run_ranks

__all__ = ["Communicator", "Engine", "Message", "run_ranks"]
