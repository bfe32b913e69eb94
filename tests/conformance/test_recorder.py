"""The recorder: when a push takes place at its shard."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from greenlet import getcurrent

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from ps_server.replication.link import ReplicationLink
from ps_server.store.journal import JournalRecord
from ps_server.store.shard import Shard
from tests.simulation.world.scheduler import ProcessEnded, Scheduler, Task

from .recorder import Recorder

PUSH = Push(Pusher(0, 1, 0), 1, assign=True)


class Interrupted:
    """A push whose shard's link becomes in sync between the moment at which it is counted and that of its record."""

    def __init__(self, ends: bool) -> None:
        self._scheduler = Scheduler(0)
        self._process = self._scheduler.process("shard")
        self._ends = ends

    def entries(self) -> list[str]:
        """Kinds of what is recorded."""
        recorder = Recorder(self._scheduler)
        self._scheduler.current = Task(self._process, "push", lambda: None, getcurrent())
        with recorder.recording():
            self._link = ReplicationLink()
            self._link.begin(1, followed=True)
            shard = Shard([SegmentSpan(0, 0, 2)], make_rule("sgd", {}))
            shard.segments[0].journal = self._append
            with suppress(ProcessEnded):
                shard.push(PUSH, 0, np.ones(2, np.float32))
        return [entry.kind for entry in recorder.log.entries]

    def _append(self, record: JournalRecord) -> None:
        self._link.has_segments(1)
        if self._ends:
            self._scheduler.end(self._process)
            raise ProcessEnded
        self._link.append(record)


@pytest.mark.parametrize(
    ("ends", "entries"), [(False, ["link", "link", "apply"]), (True, ["link", "void", "link", "end"])]
)
def test_a_push_takes_place_where_the_journal_has_its_record(ends: bool, entries: list[str]) -> None:
    assert Interrupted(ends).entries() == entries
