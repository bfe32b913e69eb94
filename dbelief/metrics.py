"""Every number a process offers to Prometheus; the one place that knows prometheus_client.

A collector may exist once in a process, so `TABLE` is the only list of them, and a `Metrics` makes those of
one role on a registry of its own. A name in Prometheus is `dbelief_ROLE_NAME`: samples counted by replicas
and samples counted by the coordinator are the same samples, and must not meet in one sum. Labels take few
values, each known or bounded by the job (named vectors, roles): never a member's id, which a scrape adds by
itself as `instance`.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    make_wsgi_app,
)

from dbelief.console import announce
from dbelief.security import current
from dbelief.web import WebServer

PHASES = ("fetch", "compute", "push", "wait", "data")

_VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_APPLY_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_SNAPSHOT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True)
class Row:
    """One collector: `labels` maps a label to its values where they are known beforehand, else to ()."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    tells: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


_STALENESS = "versions applied between the parameters a gradient was computed on and the gradient"

TABLE: Mapping[str, tuple[Row, ...]] = {
    "ps": (
        Row("pushes_total", "counter", "pushes", "pushes acknowledged", {"vector": ()}),
        Row("pulls_total", "counter", "pulls", "pulls answered", {"vector": ()}),
        Row("bytes_total", "counter", "bytes", "payload of segments", {"direction": ("received", "sent")}),
        Row("apply_seconds", "histogram", "seconds", "applying one segment", buckets=_APPLY_S),
        Row("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
        Row("refused_total", "counter", "calls", "calls refused", {"reason": ()}),
        Row(
            "duplicates_total", "counter", "segments", "segments of pushes that came again, and were not applied again"
        ),
        Row("segments", "gauge", "segments", "segments kept by this shard"),
        Row("parameters", "gauge", "parameters", "parameters kept by this shard"),
        Row("snapshot_seconds", "histogram", "seconds", "writing one snapshot", buckets=_SNAPSHOT_S),
        Row("snapshot_age_seconds", "gauge", "seconds", "since the last snapshot was complete"),
    ),
    "worker": (
        Row("samples_total", "counter", "samples", "samples trained"),
        Row("steps_total", "counter", "mini-batches", "mini-batches trained"),
        Row("pushes_total", "counter", "pushes", "pushes acknowledged by every shard"),
        Row("loss", "gauge", "nats for cross-entropy", "mean loss of the last mini-batch"),
        Row("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
        Row("phase_seconds_total", "counter", "seconds", "where this replica's time went", {"phase": PHASES}),
    ),
    "coordinator": (
        Row("members", "gauge", "processes", "members of the job", {"role": ("ps", "worker")}),
        Row("members_lost_total", "counter", "processes", "members that died or fell silent"),
        Row("pushes_twice_total", "counter", "pushes", "pushes trained twice because of deaths"),
        Row("pushes_lost_total", "counter", "pushes", "pushes that died with a shard, which came back without them"),
        Row("leases_outstanding", "gauge", "leases", "ranges of samples handed out and not done"),
        Row("samples_total", "counter", "samples", "samples done"),
        Row("epoch", "gauge", "epochs", "passes over the training data, with its fraction"),
        Row("loss", "gauge", "nats for cross-entropy", "mean training loss over the last reports"),
        Row("validation_loss", "gauge", "nats for cross-entropy", "mean loss at the last evaluation"),
        Row("validation_accuracy", "gauge", "fraction", "share of right answers at the last evaluation"),
        Row("state", "gauge", "0 or 1", "1 for the state the job is in", {"state": ()}),
        Row("iterations_total", "counter", "iterations", "iterations of a batch method"),
        Row("evaluations_total", "counter", "passes", "passes of a batch method over its batch"),
        Row("gradient_norm", "gauge", "loss units per parameter unit", "length of a batch method's gradient"),
        Row("step_length", "gauge", "directions", "a batch method's last step, in lengths of its direction"),
        Row("bundles_total", "counter", "bundles", "bundles of portions that replicas computed, copies left out"),
        Row("backups_launched_total", "counter", "bundles", "copies of bundles that were given to the idle"),
        Row("backups_won_total", "counter", "bundles", "copies of bundles that were done first"),
    ),
}


class Metrics:
    """The collectors of one process, as attributes by the names of `TABLE`.

    An attribute that `TABLE` does not list for the role does not exist. All are safe to use from several
    threads. `snapshot_age_seconds` is best given a function: `set_function(lambda: now() - last)`.

    Parameters
    ----------
    role
        "ps", "worker" or "coordinator".
    """

    pushes_total: Counter
    pulls_total: Counter
    bytes_total: Counter
    apply_seconds: Histogram
    staleness: Histogram
    refused_total: Counter
    duplicates_total: Counter
    segments: Gauge
    parameters: Gauge
    snapshot_seconds: Histogram
    snapshot_age_seconds: Gauge
    samples_total: Counter
    steps_total: Counter
    loss: Gauge
    phase_seconds_total: Counter
    members: Gauge
    members_lost_total: Counter
    pushes_twice_total: Counter
    pushes_lost_total: Counter
    leases_outstanding: Gauge
    epoch: Gauge
    validation_loss: Gauge
    validation_accuracy: Gauge
    state: Gauge
    iterations_total: Counter
    evaluations_total: Counter
    gradient_norm: Gauge
    step_length: Gauge
    bundles_total: Counter
    backups_launched_total: Counter
    backups_won_total: Counter

    def __init__(self, role: str) -> None:
        if role not in TABLE:
            raise ValueError(f"role {role!r} has no metrics; allowed are {', '.join(TABLE)}")
        self.role = role
        # A timestamp beside every counter would double what is scraped, and nothing here reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for row in TABLE[role]:
            setattr(self, row.name, self._collector(row))
        self._state: str | None = None
        self._server: WebServer | None = None

    def set_state(self, state: str) -> None:
        """Tell the state the job is in: 1 for it, 0 for the one before."""
        if self._state is not None:
            self.state.labels(self._state).set(0)
        self.state.labels(state).set(1)
        self._state = state

    def raise_to(self, name: str, total: float) -> None:
        """Bring a counter without labels up to a total that is kept elsewhere; one that has fallen leaves it."""
        getattr(self, name).inc(max(0, total - (self.value(name) or 0)))

    def serve(self, listen: str | None) -> None:
        """Offer the numbers over HTTP at /metrics until `close`, and say where; nothing for None.

        With credentials, over HTTPS, to those who show a certificate of the job's authority.

        Parameters
        ----------
        listen
            `host:port`; port 0 takes any that is free.

        Raises
        ------
        Mistake
            Nothing can listen there, or other machines reach it and there are no credentials.
        """
        if self._server is not None:
            raise ValueError("these metrics are served already")
        if listen is None:
            return
        mine = current()
        context = mine.context(ssl.Purpose.CLIENT_AUTH) if mine else None
        self._server = WebServer(listen, make_wsgi_app(self._registry), "metrics", context)
        announce(f"metrics on {self.url}")

    @property
    def url(self) -> str:
        """Where they are served; "" where they are not."""
        return f"{self._server.url}metrics" if self._server is not None else ""

    def close(self) -> None:
        """Stop serving, if `serve` was called."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def value(self, name: str, **labels: str) -> float | None:
        """One number as a scrape would read it, by its name in `TABLE`; None where there is none yet.

        Of a histogram: `value("staleness_count")`, `value("staleness_sum")`,
        `value("staleness_bucket", le="4.0")`.
        """
        return self._registry.get_sample_value(f"dbelief_{self.role}_{name}", labels)

    def text(self) -> str:
        """What a scrape reads."""
        return generate_latest(self._registry).decode()

    def _collector(self, row: Row) -> Counter | Gauge | Histogram:
        name = f"dbelief_{self.role}_{row.name}"
        tells = f"{row.tells} ({row.unit})"
        collector: Counter | Gauge | Histogram
        if row.kind == "counter":
            collector = Counter(name, tells, tuple(row.labels), registry=self._registry)
        elif row.kind == "gauge":
            collector = Gauge(name, tells, tuple(row.labels), registry=self._registry)
        else:
            collector = Histogram(name, tells, tuple(row.labels), registry=self._registry, buckets=row.buckets)
        # A series that is 0 from the start can be told from one that is missing.
        for known in row.labels.values():
            for label in known:
                collector.labels(label)
        return collector
