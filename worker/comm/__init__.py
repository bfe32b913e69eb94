"""How the ranks of one model replica talk: one `Comm` over engines of threads, MPI or NCCL."""

from .communicator import Comm
from .engine import Engine, Message
from .threads import run_ranks

__all__ = ["Comm", "Engine", "Message", "run_ranks"]
