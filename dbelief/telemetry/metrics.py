"""Prometheus metrics of a process; the one module that uses prometheus_client.

A collector may exist once in a process, so `TABLE` (`metric_specs.py`) is the only list of them, and a `Metrics` makes
those of one role on its own registry. A total that is counted elsewhere is read at each scrape (`add_callback`), so
that counting costs nothing more.
"""

import logging
import math
import shutil
import ssl
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    make_wsgi_app,
)
from prometheus_client import Counter as _Counter
from prometheus_client import Histogram as _Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dbelief.security import current
from dbelief.telemetry.http_server import WebServer
from dbelief.telemetry.metric_specs import STATES, TABLE, MetricSpec

log = logging.getLogger(__name__)

MOST_SERIES = 512
"""Maximum number of series of one counter. Label values may come from other processes: further series, and long values,
are counted together."""
LONGEST_LABEL = 128
"""Maximum number of characters of a label's value."""
OTHERS = "(others)"
"""Label value of the series that counts the rest."""

_ANSWER_S = 0.5
"""Time allowed for sending the reply to a scrape."""


class Counter(_Counter):
    """A counter with a bounded number of series."""

    def __init__(self, *words: Any, **options: Any) -> None:  # its series are instances of the same class
        super().__init__(*words, **options)
        self._series: dict[tuple[str, ...], Self] = {}
        self._room = threading.Lock()

    def labels(self, *values: Any, **named: Any) -> Self:
        """The series of these values; the shared one where there are too many."""
        key = tuple(map(str, values or [named.get(name) for name in self._labelnames]))
        series = self._series.get(key)
        if series is not None:
            return series
        with self._room:
            if len(self._series) >= MOST_SERIES or max(map(len, key), default=0) > LONGEST_LABEL:
                return super().labels(*[OTHERS] * len(key))
            self._series[key] = series = super().labels(*values, **named)
            return series


class Histogram(_Histogram):
    """A histogram without exemplars, which is cheap to observe: a shard does so for each segment of a push."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Count several observations. Cost: the locks of the sum, and of each class that has some."""
        if len(amounts) == 1:
            self.observe(amounts[0])
        elif amounts:
            bounds, classes = self._upper_bounds, dict[int, int]()
            for amount in amounts:
                found = bisect_left(bounds, amount)
                classes[found] = classes.get(found, 0) + 1
            self._sum.inc(sum(amounts))
            for found, count in classes.items():
                self._buckets[found].inc(count)

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an observation. Cost: a search in the sorted bounds; the base class compares with one after another."""
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)

    def add(self, counts: Sequence[int], total: float) -> None:
        """Count observations: how many are in each class, of which the last one has no bound; and their sum."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)


class Metrics:
    """Collectors of one process, as attributes by the names of `TABLE`.

    An attribute that `TABLE` does not list for the role does not exist. All are safe to use from several threads. A
    gauge is NaN until it is set; for an age use a function: `set_function(lambda: now() - last)`.

    Parameters
    ----------
    role
        "ps", "worker" or "coordinator".
    standing_by
        Expose only the metrics of a standby, until `lead`.
    """

    pushes_total: Counter
    pulls_total: Counter
    bytes_total: Counter
    shared_bytes_total: Counter
    apply_seconds: Histogram
    staleness: Histogram
    refused_total: Counter
    duplicates_total: Counter
    retries_total: Counter
    lock_waits_total: Counter
    lock_wait_seconds_total: Counter
    hottest_pushes_per_second: Gauge
    hottest_segment: Gauge
    hottest_share: Gauge
    segments: Gauge
    parameters: Gauge
    table_rows: Gauge
    table_bytes: Gauge
    table_rows_evicted_total: Counter
    table_keys_refused_total: Counter
    table_cache_reads_total: Counter
    table_cache_hits_total: Counter
    snapshot_seconds: Histogram
    snapshot_age_seconds: Gauge
    disk_free_bytes: Gauge
    disk_size_bytes: Gauge
    samples_total: Counter
    steps_total: Counter
    loss: Gauge
    phase_seconds_total: Counter
    gpu_memory_bytes: Gauge
    gpu_busy_fraction: Gauge
    leading: Gauge
    leader_epoch: Gauge
    takeovers_total: Counter
    state: Gauge
    members: Gauge
    members_wanted: Gauge
    members_lost_total: Counter
    shards_away: Gauge
    shards_back_total: Counter
    shards_unfollowed: Gauge
    promotions_total: Counter
    segments_moved_total: Counter
    longest_move_seconds: Gauge
    pushes_twice_total: Counter
    steps_left_out_total: Counter
    pushes_lost_total: Counter
    residual_lost_total: Counter
    rounds_total: Counter
    pushes_late_total: Counter
    leases_outstanding: Gauge
    lease_backlog: Gauge
    leases_expired_total: Counter
    samples_wanted: Gauge
    eta_seconds: Gauge
    progress_age_seconds: Gauge
    progress_deadline_seconds: Gauge
    epoch: Gauge
    losses_not_finite_total: Counter
    validation_loss: Gauge
    validation_accuracy: Gauge
    validation_metric: Gauge
    staleness_recent: Gauge
    staleness_bound: Gauge
    stragglers: Gauge
    snapshot_interval_seconds: Gauge
    iterations_total: Counter
    evaluations_total: Counter
    gradient_norm: Gauge
    step_length: Gauge
    bundles_total: Counter
    backups_launched_total: Counter
    backups_won_total: Counter

    def __init__(self, role: str, standing_by: bool = False) -> None:
        if role not in TABLE:
            raise ValueError(f"role {role!r} has no metrics; allowed are {', '.join(TABLE)}")
        self.role = role
        # A timestamp for every counter would double the size of a scrape, and nothing here reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._scraped = _Scraped()
        self._registry.register(self._scraped)  # first: totals it updates are collected after it
        ProcessCollector(registry=self._registry)
        self._hidden: list[Collector] = []
        for row in TABLE[role]:
            collector = _made(row, role)
            setattr(self, row.name, collector)
            if standing_by and not row.standby:
                self._hidden.append(collector)
            else:
                self._registry.register(collector)
        self._raised: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._server: WebServer | None = None

    def lead(self) -> None:
        """Expose all metrics from now on."""
        for collector in self._hidden:
            self._registry.register(collector)
        self._hidden.clear()

    def set_state(self, state: str) -> None:
        """Set the job's state: 1 for it, 0 for all others."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        for one in STATES:
            self.state.labels(one).set(one == state)

    def raise_to(self, name: str, total: float, **labels: str) -> None:
        """Increase a counter to a total that is kept elsewhere; a decrease is ignored. Nothing else may increase it."""
        key = name, tuple(labels.items())
        more = total - self._raised.get(key, 0.0)
        if more > 0:
            self._raised[key] = total
            counter = getattr(self, name)
            (counter.labels(**labels) if labels else counter).inc(more)

    def add_callback(self, name: str, total: Callable[[], float], **labels: str) -> None:
        """Add to a counter, at each scrape, the increase of a total that is kept elsewhere.

        One counter may have several totals. A total that decreased has restarted at 0.
        """
        counter, seen = getattr(self, name), 0.0
        series = counter.labels(**labels) if labels else counter

        def update() -> None:
            nonlocal seen
            now = total()
            series.inc(now - seen if now >= seen else now)
            seen = now

        self._scraped.before.append(update)

    def settle(self) -> None:
        """Add the last increases of the callbacks' totals, and remove the callbacks: a job and its objects are gone."""
        self._scraped.settle()

    def watch_disk(self, folder: Path) -> None:
        """Report, at each scrape, size and free space of the file system of a folder; NaN where that fails."""

        def room(which: int) -> float:
            try:
                return float(shutil.disk_usage(folder)[which])
            except OSError:
                return math.nan

        self.disk_size_bytes.set_function(lambda: room(0))
        self.disk_free_bytes.set_function(lambda: room(2))

    def wait_for_scrape(self, timeout_s: float) -> None:
        """Wait for one more scrape, so that it reads the final values; return at once if there was none before."""
        self._scraped.wait(timeout_s)

    def serve(self, listen: str | None) -> None:
        """Serve the metrics over HTTP at /metrics until `close`, and log the address; nothing for None.

        With credentials, over HTTPS, and only to clients with a certificate of the job's authority.

        Parameters
        ----------
        listen
            `host:port`; port 0 selects any free one.

        Raises
        ------
        UserError
            The address cannot be bound, or other machines can reach it and there are no credentials.
        """
        if listen is None:
            return
        if self._server is not None:
            raise ValueError("these metrics are served already")
        mine = current()
        context = mine.context(ssl.Purpose.CLIENT_AUTH) if mine else None
        self._server = WebServer(listen, make_wsgi_app(self._registry), "metrics", context)
        log.info(f"metrics on {self.url}")

    @property
    def url(self) -> str:
        """URL of the metrics; "" where they are not served."""
        return f"{self._server.url}metrics" if self._server is not None else ""

    def close(self) -> None:
        """Stop serving, if `serve` was called."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def value(self, name: str, **labels: str) -> float | None:
        """One value as a scrape would read it, by its name in `TABLE`; None where there is none yet.

        Of a histogram: `value("staleness_count")`, `value("staleness_sum")`, `value("staleness_bucket", le="4.0")`.
        Cost: all metrics are collected.
        """
        return self._registry.get_sample_value(f"dbelief_{self.role}_{name}", labels)

    def read_counter(self, name: str, **labels: str) -> float:
        """One counter's value. Unlike `value` this is no scrape: no callback runs, and no other metric is collected."""
        counter = getattr(self, name)
        series = counter.labels(**labels) if labels else counter
        return float(sum(sample.value for metric in series.collect() for sample in metric.samples))

    def text(self) -> str:
        """Text of a scrape."""
        return generate_latest(self._registry).decode()


def _made(row: MetricSpec, role: str) -> Counter | Gauge | Histogram:
    """Make a row's collector, not registered yet."""
    labels, kinds = tuple(row.labels), {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
    options = {"buckets": row.buckets} if row.buckets else {}
    name, text = f"dbelief_{role}_{row.name}", f"{row.help} ({row.unit})"
    collector: Counter | Gauge | Histogram = kinds[row.kind](name, text, labels, registry=None, **options)
    # A series that exists from the start can be distinguished from a missing one.
    series = [collector.labels(known) for values in row.labels.values() for known in values] if labels else [collector]
    for one in series:
        if isinstance(one, Gauge):
            one.set(math.nan)
    return collector


class _Scraped(Collector):
    """First collector: runs the updates before the others are collected, and signals each scrape."""

    def __init__(self) -> None:
        self.before: list[Callable[[], None]] = []
        self._times = 0
        self._happened = threading.Condition()

    def collect(self) -> Iterator[Metric]:
        with self._happened:
            for update in self.before:
                update()
            self._times += 1
            self._happened.notify_all()
        return iter(())

    def settle(self) -> None:
        with self._happened:
            for update in self.before:
                update()
            self.before.clear()

    def wait(self, timeout_s: float) -> None:
        with self._happened:
            seen = self._times
            if not (seen and self._happened.wait_for(lambda: self._times > seen, timeout_s)):
                return
        threading.Event().wait(_ANSWER_S)
