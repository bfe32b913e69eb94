"""Model of a job's mini-batches: the samples per second that other numbers of workers, shards or bytes would give.

Pure functions of what was measured. Free-running workers are a closed queueing network: each of N workers goes round

    Z                       seconds that no other worker delays: sleeping, a GPU, latency, a link of its own
    processors              D_c seconds of the machine's m free processors, of all processes for a mini-batch
    link of a shard's host  D_in, D_out seconds in its two directions

and the rate X(N) follows by mean value analysis (Reiser and Lavenberg 1980). At m processors who comes waits for those
beyond the first m - 1 that it finds there, and X(N) <= m / D_c. A shard serves its pushes one after the other: X(N)
D_shard <= 1.
Workers in lockstep wait for the slowest:

    T(N) = max of their computing and data + latency + bytes + N D_shard, and T(N) >= N D_c / m;  X(N) = N / T(N)

Z, or in lockstep the seconds of the bytes, is what makes the model give the measured rate at the measured number. So a
prediction is a factor of that rate. What is assumed: computing and data take time in proportion to the mini-batch; more
workers are like those that were measured, on the same machines where they share processors; more shards are on hosts of
their own, with such links; the directions of a link are independent; encoding costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

BISECTIONS = 50
SERIAL = 1.0
"""Processors that one shard can use: its pushes of a segment follow each other."""
ANSWERS = 2.0
"""Answer times of the network in an exchange: one for its messages, one for a window that has to grow."""


@dataclass(frozen=True)
class Station:
    """What workers queue for: seconds of it in a mini-batch, and how many servers it has."""

    demand_s: float
    servers: float = 1.0


def queueing_rate(workers: int, delay_s: float, stations: Sequence[Station]) -> float:
    """Mini-batches per second of so many workers, by mean value analysis; infinite where nothing takes time.

    Exact with one server at each station. Cost: workers times stations.
    """
    most = min((one.servers / one.demand_s for one in stations if one.demand_s > 0), default=math.inf)
    queues, rate = [0.0] * len(stations), math.inf
    for count in range(1, workers + 1):
        passed_s = [
            one.demand_s * (1 + max(0.0, queue - (one.servers - 1)) / one.servers)
            for one, queue in zip(stations, queues, strict=True)
        ]
        cycle_s = delay_s + sum(passed_s)
        if cycle_s <= 0:
            return math.inf
        rate = min(count / cycle_s, most)
        queues = [rate * seconds for seconds in passed_s]
        behind = max(
            range(len(stations)), key=lambda place: stations[place].demand_s / stations[place].servers, default=0
        )
        if stations:  # those who do not fit elsewhere queue at the busiest station
            queues[behind] = count - rate * (cycle_s - passed_s[behind])
    return rate


def solved(rises: Callable[[float], float], wanted: float, most: float) -> float:
    """The argument from 0 to `most` at which a rising function has a value; the nearest end where it has not."""
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < wanted else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Geometry:
    """Which part of the bytes of an exchange passes which link.

    Attributes
    ----------
    own
        Of one worker's bytes: through its own link; 0 where all shards are in its network.
    shard
        Of one worker's bytes: through the link of one shard's host, a mean over the workers, of the busiest host.
    """

    own: float = 0.0
    shard: float = 0.0

    def with_shards(self, before: int, after: int) -> Geometry:
        """The same with another number of shards; more are on hosts of their own."""
        if not self.own:
            return self
        own = self.own if before == 1 else min(1.0, self.own * (1 - 1 / after) / (1 - 1 / before))
        return Geometry(own if own else 1.0, self.shard * before / after)


@dataclass(frozen=True)
class Change:
    """A change of a job: numbers of workers and shards, None for those measured, and factors.

    Attributes
    ----------
    batch
        Samples of a mini-batch, as a multiple.
    period
        Mini-batches between two exchanges, as a multiple.
    volume
        Bytes of an exchange, as a multiple.
    lockstep
        Whether workers wait for each other; None: as now.
    without_slowest
        Workers that no other waits for.
    """

    workers: int | None = None
    shards: int | None = None
    batch: float = 1.0
    period: float = 1.0
    volume: float = 1.0
    lockstep: bool | None = None
    without_slowest: int = 0


NOTHING = Change()


@dataclass(frozen=True)
class StepModel:
    """Seconds of a mini-batch, and what they are made of. All are of one worker, means, but for `own_s`.

    Attributes
    ----------
    own_s
        By worker: computing and data.
    exchange_s
        Exchanges, without waits for slower workers.
    idle_s
        Without work.
    rate
        Mini-batches per second of all workers, as measured.
    processor_s, processors
        Processor seconds of all the job's processes on the busiest machine; free processors of that machine.
    shard_s
        Processor seconds of the busiest shard.
    answer_s
        Shortest time of an answer over the network; 0 where all is on one network.
    sent_share
        Share of the bytes that go from workers to shards, 0 to 1.
    bytes_s
        Seconds of one exchange's bytes on a link that nothing else uses, for each mini-batch; by `calibrated`.
    delay_s
        Seconds that no other worker delays; by `calibrated`.
    """

    own_s: tuple[float, ...]
    exchange_s: float
    idle_s: float
    rate: float
    processor_s: float = 0.0
    processors: float = 1.0
    shard_s: float = 0.0
    shards: int = 1
    answer_s: float = 0.0
    sent_share: float = 0.5
    geometry: Geometry = Geometry()
    lockstep: bool = False
    bytes_s: float = 0.0
    delay_s: float = 0.0

    @property
    def workers(self) -> int:
        """Number of workers that were measured."""
        return len(self.own_s)

    @property
    def latency_s(self) -> float:
        """Seconds of an exchange without any bytes."""
        return min(0.9 * self.exchange_s, ANSWERS * self.answer_s)

    @property
    def mean_own_s(self) -> float:
        """Computing and data, a mean over the workers."""
        return sum(self.own_s) / len(self.own_s)

    @property
    def link_s(self) -> float:
        """Seconds of an exchange that its bytes are on links, with queues."""
        if not self.geometry.own:
            return 0.0
        return max(0.0, self.exchange_s - self.latency_s - self.shard_s)

    def calibrated(self) -> StepModel:
        """The same with `bytes_s` and `delay_s`, at which the model gives what was measured."""
        if self.lockstep:
            passes = max(self.geometry.own, self.workers * self.geometry.shard)
            bytes_s = self.link_s / passes if passes else 0.0
            return replace(self, bytes_s=bytes_s)
        cycle_s = self.workers / self.rate
        bytes_s = 0.0
        if self.link_s:
            most_s = self.link_s / min(self.geometry.own, 1.0)
            bytes_s = solved(lambda one_s: self._link_residence_s(one_s, cycle_s), self.link_s, most_s)
        model = replace(self, bytes_s=bytes_s)
        delay_s = solved(lambda delay: -model._free_rate(NOTHING, delay), -self.rate, cycle_s)
        return replace(model, delay_s=delay_s)

    def _link_residence_s(self, bytes_s: float, cycle_s: float) -> float:
        """Seconds that an exchange is on links, where a cycle takes so long in all."""
        stations = self._link_stations(bytes_s, self.geometry)
        alone_s = sum(station.demand_s for station in stations)
        own_s = max(0.0, self.geometry.own * bytes_s - alone_s)
        rest_s = max(0.0, cycle_s - self.link_s)
        return self.workers / queueing_rate(self.workers, rest_s + own_s, stations) - rest_s

    def _link_stations(self, bytes_s: float, geometry: Geometry) -> list[Station]:
        """The two directions of the link of a shard's host."""
        demand_s = geometry.shard * bytes_s
        return [Station(self.sent_share * demand_s), Station((1 - self.sent_share) * demand_s)]

    @functools.cached_property
    def present(self) -> float:
        """Mini-batches per second as measured, or by the model where that is more: what gains are multiples of."""
        return max(self.rate, self.predicted(NOTHING))

    # -- predictions -------------------------------------------------------------------------------------

    def factor(self, change: Change) -> float:
        """Samples per second after a change, as a multiple of those measured."""
        return self.predicted(change) / self.present

    def predicted(self, change: Change) -> float:
        """Samples per second after a change, in units of mini-batches as they are."""
        lockstep = self.lockstep if change.lockstep is None else change.lockstep
        rate = self._lockstep_rate(change) if lockstep else self._free_rate(change, self.delay_s)
        shard_s = self.shard_s * self.shards / (change.shards or self.shards) / change.period
        return change.batch * min(rate, SERIAL / shard_s if shard_s else math.inf)

    def _free_rate(self, change: Change, delay_s: float) -> float:
        """Mini-batches per second of workers that do not wait for each other."""
        workers = (change.workers or self.workers) - change.without_slowest
        geometry = self.geometry.with_shards(self.shards, change.shards or self.shards)
        bytes_s = self.bytes_s * change.volume / change.period
        stations = self._link_stations(bytes_s, geometry)
        private_s = max(0.0, geometry.own * bytes_s - sum(station.demand_s for station in stations))
        used_s = self._processor_s(change)
        stations.append(Station(used_s, self.processors))
        if self.lockstep:  # what they waited for was the slowest
            rates = [1 / max(own_s, 1e-9) for own_s in self.own_s]
            mean_s = len(rates) / sum(rates)
            software_s = max(0.0, self.exchange_s - self.latency_s - self.link_s)
            delay_s = max(0.0, mean_s * change.batch + software_s - used_s) + self.latency_s / change.period
        else:
            delay_s = self._delay_s(change, delay_s)
        return queueing_rate(workers, delay_s + private_s, stations)

    def alone(self, workers: int, processors: float) -> float:
        """Samples per second of so many workers on one machine with their shards, in units as `predicted`."""
        waits_s = max(0.0, self.mean_own_s - self._own_processor_s)
        return queueing_rate(workers, waits_s, [Station(self.processor_s, processors)])

    def _delay_s(self, change: Change, delay_s: float) -> float:
        """`delay_s` after a change: computing grows with a mini-batch, the rest with the number of exchanges."""
        computes_s = min(delay_s, max(0.0, self.mean_own_s - self._own_processor_s))
        return computes_s * change.batch + (delay_s - computes_s) / change.period

    @property
    def _own_processor_s(self) -> float:
        """Processor seconds of computing and data."""
        return min(self.mean_own_s, max(0.0, self.processor_s - self.shards * self.shard_s))

    def _processor_s(self, change: Change) -> float:
        """Processor seconds of a mini-batch after a change."""
        exchanges_s = max(0.0, self.processor_s - self._own_processor_s)
        return self._own_processor_s * change.batch + exchanges_s / change.period

    def _lockstep_rate(self, change: Change) -> float:
        """Mini-batches per second of workers that wait for each other."""
        workers = change.workers or self.workers
        kept = sorted(self.own_s)[: len(self.own_s) - change.without_slowest]
        geometry = self.geometry.with_shards(self.shards, change.shards or self.shards)
        bytes_s = self.bytes_s * change.volume * max(geometry.own, workers * geometry.shard)
        software_s = max(0.0, self.exchange_s - self.latency_s - self.link_s)
        more_s = (workers - self.workers) * self.shard_s if not self.geometry.own else 0.0
        exchange_s = self.latency_s + bytes_s + max(0.0, software_s + more_s)
        round_s = kept[-1] * change.batch + exchange_s / change.period + self.idle_s
        workers -= change.without_slowest
        least_s = workers * self._processor_s(change) / self.processors
        return workers / max(round_s, least_s)
