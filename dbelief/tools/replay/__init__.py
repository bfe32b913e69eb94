"""Replay of a recorded run, in one thread and to the last bit."""

from .exchange_replay import replay_exchanges
from .push_replay import replay
from .round_replay import replay_rounds
from .run import replay_run

__all__ = ["replay", "replay_exchanges", "replay_rounds", "replay_run"]
