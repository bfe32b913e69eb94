"""A recorded run once more, in one thread and to the last bit."""

from .exchanges import replay_exchanges
from .pushes import replay
from .run import replay_run

__all__ = ["replay", "replay_exchanges", "replay_run"]
