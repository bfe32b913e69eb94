"""Replay of a recorded run, in one thread and to the last bit."""

from .exchange_replay import replay_exchanges
from .push_replay import replay
from .run import replay_run

__all__ = ["replay", "replay_exchanges", "replay_run"]
