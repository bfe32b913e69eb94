"""The client of the shards: pull and push of the whole vector, every shard at once.

Cost of a pull or push of N numbers in S segments on K shards: K streams, S messages, 4N bytes; the array is copied
once into messages on push, and once out of them on pull. Streams of all shards run at the same time: gRPC feeds and
fills them in the background while they are worked off one after another.

A stream that breaks is opened again and goes on from the first segment that was not acknowledged; the shard's ledger
makes the repetition harmless. The deadline is "no segment for so long", never a limit on the whole stream.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from dbelief.errors import Unreachable
from dbelief.layout import Span
from dbelief.placement import Place, Placement
from dbelief.pushes import PARAMETERS, Push, Pushed, Pusher
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc import segments_pb2 as segments

from .channel import named_errors, open_channel
from .convert import numbers, push_to_wire, pusher_to_wire

_RETRY_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before a stream is opened again; the last one for all further times."""


class Watchdog:
    """Cancels calls on which nothing has moved for `deadline_s`."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._moved: dict[Any, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def moved(self, call: Any) -> None:
        """Note progress on a call; the first note begins the watch."""
        with self._lock:
            self._moved[call] = time.monotonic()

    def done(self, call: Any) -> None:
        """End the watch on a call."""
        with self._lock:
            self._moved.pop(call, None)

    def close(self) -> None:
        """End the watch on everything."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self.deadline_s / 4)):
            limit = time.monotonic() - self.deadline_s
            with self._lock:
                late = [call for call, at in self._moved.items() if at < limit]
            for call in late:
                call.cancel()


class ShardedParameters:
    """`Parameters` over gRPC.

    Parameters
    ----------
    job
        The job's id.
    placement
        Where each segment lives; may be replaced while no call runs.
    rule
        Name and options of the job's rule, told with every push.
    pusher
        Who pulls and pushes; None for a reader.
    deadline_s
        A stream without a segment for so long is opened again, as a broken one is; after twice as long a call fails.
    refresh
        Called when a shard cannot be reached; returns the placement as it is now, or raises where the job is over.
    """

    def __init__(
        self,
        job: str,
        placement: Placement,
        rule: tuple[str, dict[str, float]] = ("assign", {}),
        pusher: Pusher | None = None,
        deadline_s: float = 60.0,
        refresh: Callable[[], Placement] | None = None,
    ) -> None:
        self.job = job
        self.placement = placement
        self._rule = segments.Rule(name=rule[0], options=rule[1])
        self._pusher = pusher
        self._deadline_s = deadline_s
        self._refresh = refresh
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, stubs.ParametersStub] = {}
        self._opening = threading.Lock()
        self._watchdog = Watchdog(deadline_s)

    def close(self) -> None:
        """Close all channels."""
        self._watchdog.close()
        for channel in self._channels.values():
            channel.close()

    def _stub(self, place: Place) -> stubs.ParametersStub:
        with self._opening:  # pulls and pushes come from two threads
            if place.address not in self._stubs:  # making one costs as much as a call
                channel = self._channels[place.address] = open_channel(place.address)
                self._stubs[place.address] = stubs.ParametersStub(channel)
            return self._stubs[place.address]

    def _target(self, place: Place) -> wire.Target:
        return wire.Target(job=self.job, shard_epoch=place.shard_epoch)

    # -- pull --------------------------------------------------------------------------------------------

    def pull(self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0) -> None:
        """See `Parameters.pull`.

        Raises
        ------
        Unreachable, Refused
            Naming the shard.
        """

        def start(place: Place, run: Sequence[Span]) -> Any:
            request = wire.PullRequest(
                target=self._target(place),
                vector=vector,
                segments=[span.index for span in run],
                clock=clock,
                pusher=pusher_to_wire(self._pusher) if self._pusher else None,
            )
            held = versions[run[0].index : run[-1].index + 1]
            if (held >= 0).all():
                request.if_newer_than.extend(held.tolist())
            return self._stub(place).Pull(request)

        def take(segment: segments.Segment, first: int, done: int) -> int:
            span = self.placement.spans[segment.index]
            versions[span.index] = segment.version
            if not segment.unchanged:
                out[span.start : span.stop] = numbers(segment)
            return done + 1

        self._run(start, take, "pull")

    def each_segment(self, vector: str = PARAMETERS) -> Iterator[tuple[Span, np.ndarray]]:
        """Read a named vector one segment at a time: (length,) float32 over the message's own bytes."""
        for place in self.placement.places:
            if not place.count:
                continue
            indices = [span.index for span in self.placement.run(place)]
            request = wire.PullRequest(target=self._target(place), vector=vector, segments=indices)
            with named_errors(f"pull: shard {place.shard} at {place.address}"):
                for segment in self._stub(place).Pull(request, timeout=self._deadline_s * max(1, len(indices) // 64)):
                    yield self.placement.spans[segment.index], numbers(segment)

    # -- push --------------------------------------------------------------------------------------------

    def push(self, values: np.ndarray, versions: np.ndarray, push: Push) -> Pushed:
        """See `Parameters.push`.

        Raises
        ------
        Unreachable, Refused
            Naming the shard.
        """
        totals = {"staleness": 0, "duplicates": 0, "lost": 0}
        codec = segments.CODEC_FP64 if values.dtype == np.float64 else segments.CODEC_FP32

        def messages(place: Place, run: Sequence[Span]) -> Iterator[wire.PushRequest]:
            yield wire.PushRequest(opening=push_to_wire(push, self._target(place), self._rule))
            for span in run:
                yield wire.PushRequest(
                    segment=segments.Segment(
                        index=span.index,
                        version=max(0, int(versions[span.index])),
                        length=span.length,
                        codec=codec,
                        data=values[span.start : span.stop].tobytes(),
                    )
                )

        def start(place: Place, run: Sequence[Span]) -> Any:
            return self._stub(place).Push(messages(place, run))

        def take(reply: wire.PushReply, first: int, done: int) -> int:
            totals["staleness"] += reply.staleness
            totals["duplicates"] += reply.duplicates
            totals["lost"] = max(totals["lost"], reply.lost)
            return first + reply.acknowledged

        self._run(start, take, "push")
        applied = len(self.placement.spans) - totals["duplicates"]
        return Pushed(totals["staleness"] / max(1, applied), totals["duplicates"], totals["lost"])

    # -- both --------------------------------------------------------------------------------------------

    def _run(
        self,
        start: Callable[[Place, Sequence[Span]], Any],
        take: Callable[[Any, int, int], int],
        what: str,
    ) -> None:
        """Open a stream to every shard, then work them off.

        `take` gets an answer, how many segments were done when its stream was opened, and how many are done now; it
        returns how many are done then.
        """
        places = [place for place in self.placement.places if place.count]
        calls = [start(place, self.placement.run(place)) for place in places]
        for place, call in zip(places, calls, strict=True):
            self._finish(place, call, start, take, what)

    def _finish(
        self,
        place: Place,
        call: Any,
        start: Callable[[Place, Sequence[Span]], Any],
        take: Callable[[Any, int, int], int],
        what: str,
    ) -> None:
        """Work one stream off; where it breaks, open it again from the first segment that is not done."""
        run = self.placement.run(place)
        done = 0
        moved_s = time.monotonic()
        for pause_s in itertools.chain(_RETRY_S, itertools.repeat(_RETRY_S[-1])):
            first = done
            where = f"{what}: shard {place.shard} at {place.address}"
            self._watchdog.moved(call)
            try:
                with named_errors(where):
                    for answer in call:
                        done = take(answer, first, done)
                        moved_s = time.monotonic()
                        self._watchdog.moved(call)
                if done >= len(run):
                    return
                trouble = Unreachable(f"{where}: ended after {done} of {len(run)} segments")
            except Unreachable as error:
                trouble = error
            finally:
                self._watchdog.done(call)
            still_s = time.monotonic() - moved_s
            if still_s + pause_s >= 2 * self._deadline_s:  # a stream that stood still had its second chance
                raise Unreachable(f"{trouble}; no segment for {still_s:.3g} s")
            time.sleep(pause_s)
            place = self._again(place)
            call = start(place, run[done:])

    def _again(self, place: Place) -> Place:
        """Ask where the shard is now."""
        if self._refresh is not None:
            self.placement = self._refresh()
        return next(p for p in self.placement.places if p.shard == place.shard)
