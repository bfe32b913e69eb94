"""The recorded events of a simulation as a delays file, which `dbelief train --set delays=FILE` replays."""

from __future__ import annotations

import numpy as np

from dbelief.errors import UserError
from dbelief.job import Elastic

from .description import Scenario
from .events.exchanges import PUSHED
from .events.parts import World
from .replay.delays import DOWNPOUR, ELASTIC, ROUNDS, DelayTrace

ROOM = 12
"""Events that are recorded for each push: fetches, rounds and losses too."""


def delays_of(scenario: Scenario, world: World, pushes: int) -> DelayTrace:
    """The order of fetches, pushes, losses and rounds from the start on, up to so many pushes.

    Raises
    ------
    UserError
        Nothing was pushed.
    """
    events = world.trace[: int(world.world[0]["traced"])]
    ends = np.flatnonzero(events["kind"] == PUSHED)
    if not len(ends):
        raise UserError("the simulated time has no push, so that there are no delays to write: --for a longer time")
    events = events[: ends[min(pushes, len(ends)) - 1] + 1]
    strategy = (
        ROUNDS if scenario.schedule.quorum else ELASTIC if isinstance(scenario.job.strategy, Elastic) else DOWNPOUR
    )
    kind, replica = events["kind"].astype(np.uint8), events["replica"].astype(np.int32)
    return DelayTrace(strategy, scenario.fleet.workers, kind, replica)
