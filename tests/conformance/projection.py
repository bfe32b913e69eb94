"""Projects a run to traces of the model: one for each segment and each worker that pushed to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dbelief.core.push import Pusher

from .events import Event
from .log import Entry, Log
from .steps import Step, Steps


@dataclass(frozen=True)
class Trace:
    """The trace of one segment and one worker."""

    segment: int
    pusher: Pusher
    events: tuple[Event, ...]


def traces_of(log: Log) -> Iterator[Trace]:
    """The traces of a run."""
    exchanges = any(entry.about.get("exchange") for entry in log.entries if entry.kind == "begin")
    for steps in Steps(log).all():
        yield from _traces_of(steps, exchanges)


def _traces_of(steps: Sequence[Step], exchanges: bool) -> Iterator[Trace]:
    pairs = sorted(
        {(step.entry.segment, step.entry.pusher) for step in steps if step.entry and step.event.kind == "BEGIN"}
    )
    for segment, pusher in pairs:
        assert pusher is not None
        yield Trace(segment, pusher, tuple(_Selection(segment, pusher, exchanges).events(steps)))


class _Selection:
    """The events of one segment and one worker."""

    def __init__(self, segment: int, pusher: Pusher, exchanges: bool) -> None:
        self._segment, self._pusher, self._exchanges = segment, pusher, exchanges
        self._recovered: set[int] = set()
        self._sequence = 0  # of the push in progress

    def events(self, steps: Sequence[Step]) -> Iterator[Event]:
        """All of them; the last is STOP."""
        for step in steps:
            event = step.event
            if step.entry is None:
                yield from self._common(event)
                continue
            select = getattr(self, f"_{event.kind.lower()}", None)
            for one in select(event, step.entry) if select else self._of_push(event, step.entry):
                yield one
                if one.kind == "STOP":
                    return
        yield Event("STOP")

    def _common(self, event: Event) -> Iterator[Event]:
        if event.kind == "FAIL" and event.other:
            self._recovered.discard(event.slot // 2)
        if event.kind == "PLACE":
            if event.slot not in self._recovered:  # it has not the segment, or the initial values come
                yield Event("RECOVER", event.slot)
            self._recovered.discard(event.slot)
        yield event

    def _of_push(self, event: Event, entry: Entry) -> Iterator[Event]:
        """APPLY, RECORD: of this segment and worker."""
        if (entry.segment, entry.pusher) == (self._segment, self._pusher):
            yield event

    def _start(self, event: Event, entry: Entry) -> Iterator[Event]:
        shard = entry.about["view"].shard_of(self._segment)
        yield replace(event, slot=shard, flag=self._exchanges)

    def _learn(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.pusher == self._pusher:
            yield event

    def _begin(self, event: Event, entry: Entry) -> Iterator[Event]:
        if (entry.segment, entry.pusher) != (self._segment, self._pusher):
            return
        if entry.sequence == self._sequence:
            yield Event("BREAK")
        self._sequence = entry.sequence
        yield event
        if entry.about["late"]:
            yield Event("LEARN")

    def _acknowledge(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.pusher == self._pusher and self._segment in entry.about["received"]:
            yield event

    def _copy(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.segment == self._segment:
            yield replace(event, number=entry.about["lasts"].get(self._pusher, 0))

    def _recover(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.kind == "load" and entry.segment != self._segment:
            return
        self._recovered.add(event.slot)
        lasts = entry.about["lasts"] if entry.kind == "load" else entry.about["lasts"].get(self._segment, {})
        fenced = self._pusher.incarnation in entry.about.get("fenced", ())
        yield replace(event, number=lasts.get(self._pusher, 0), other=fenced)

    def _fence(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.segment == self._segment and self._pusher.incarnation in entry.about["incarnations"]:
            yield event

    def _read(self, event: Event, entry: Entry) -> Iterator[Event]:
        if self._pusher.incarnation in entry.about["fenced"] and self._segment in entry.about["lasts"]:
            yield replace(event, number=entry.about["lasts"][self._segment].get(self._pusher, 0))

    def _send(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.segment == self._segment:
            yield replace(event, flag=entry.about["arrives"])

    def _serve(self, event: Event, entry: Entry) -> Iterator[Event]:
        yield replace(event, flag=self._segment in entry.about["segments"])

    def _move(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.segment == self._segment:
            yield event

    def _dead(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.about["incarnation"] == self._pusher.incarnation:
            yield event

    _settle = _dead

    def _stop(self, event: Event, entry: Entry) -> Iterator[Event]:
        if entry.segment == self._segment and self._pusher.incarnation in entry.about["incarnations"]:
            yield event
