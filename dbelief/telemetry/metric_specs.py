"""Table of all Prometheus metrics: name, unit, help, labels, buckets.

A name in Prometheus is `dbelief_ROLE_NAME`: samples counted by replicas and samples counted by the coordinator are the
same samples, and must not be added up. Labels have few values, each known or bounded by the job (named vectors, roles,
ranks of a list): never a member's id, which a scrape adds as `instance`, and never a segment's, of which a large model
has tens of thousands. An unknown value is NaN, for which no rule's comparison is true.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dbelief.core.push import STALENESS

PHASES = ("fetch", "compute", "push", "wait", "data")
STATES = ("empty", "initialising", "ready", "closing", "done", "failed")
HOTTEST = 5
"""Number of segments of a shard that are reported, by rank."""

_APPLY_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_SNAPSHOT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

_ROLES = ("ps", "worker")
_RANKS = tuple(str(rank) for rank in range(1, HOTTEST + 1))


@dataclass(frozen=True)
class MetricSpec:
    """Specification of one collector: `labels` maps a label to its values where they are known beforehand, else to ().

    `standby`: exposed by a standby process too.
    """

    name: str
    unit: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    standby: bool = False

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """A counter by its name, a histogram by its buckets; else a gauge."""
        return "counter" if self.name.endswith("_total") else "histogram" if self.buckets else "gauge"


_DIRECTIONS = {"direction": ("received", "sent")}
_STALENESS = "versions applied between the parameters a gradient was computed on and the gradient"
_AGAIN = "calls retried because no reply came, by callee"

_SHARD = (
    MetricSpec("pushes_total", "pushes", "pushes acknowledged", {"vector": ()}),
    MetricSpec("pulls_total", "pulls", "pulls answered", {"vector": ()}),
    MetricSpec("bytes_total", "bytes", "payload of segments, in messages", _DIRECTIONS),
    MetricSpec("shared_bytes_total", "bytes", "payload of segments, through shared memory", _DIRECTIONS),
    MetricSpec("apply_seconds", "seconds", "applying one segment", buckets=_APPLY_S),
    MetricSpec("staleness", "versions", _STALENESS, buckets=STALENESS),
    MetricSpec("refused_total", "calls", "calls refused", {"reason": ()}),
    MetricSpec("duplicates_total", "segments", "duplicate segments of pushes, not applied again"),
    MetricSpec("retries_total", "calls", _AGAIN, {"to": ("coordinator",)}),
    MetricSpec("lock_waits_total", "times", "times that a thread found a segment's lock held, mostly by a push"),
    MetricSpec("lock_wait_seconds_total", "seconds", "waiting for segments' locks, over all threads"),
    MetricSpec(
        "hottest_pushes_per_second", "pushes per second", "rate of the busiest segments, by rank", {"rank": _RANKS}
    ),
    MetricSpec(
        "hottest_segment",
        "segment number",
        "the busiest segments, by rank: numbers in the job's table",
        {"rank": _RANKS},
    ),
    MetricSpec("hottest_share", "fraction", "share of the busiest segment in all that segments were pushed"),
    MetricSpec("segments", "segments", "segments kept by this shard"),
    MetricSpec("parameters", "parameters", "parameters kept by this shard"),
    MetricSpec("table_rows", "rows", "rows of tables kept by this shard", {"table": ()}),
    MetricSpec("table_bytes", "bytes", "memory of these rows, with their state and index", {"table": ()}),
    MetricSpec("table_rows_evicted_total", "rows", "rows removed by evict, for their age or number", {"table": ()}),
    MetricSpec("table_keys_refused_total", "keys", "keys of pushes that got no row as a table was full", {"table": ()}),
    MetricSpec("snapshot_seconds", "seconds", "writing one snapshot", buckets=_SNAPSHOT_S),
    MetricSpec("snapshot_age_seconds", "seconds", "since this shard's part of a set was last written"),
    MetricSpec("disk_free_bytes", "bytes", "free where this shard last wrote a snapshot"),
    MetricSpec("disk_size_bytes", "bytes", "size of the file system where this shard last wrote a snapshot"),
)

_WORKER = (
    MetricSpec("samples_total", "samples", "samples trained"),
    MetricSpec("steps_total", "mini-batches", "mini-batches trained"),
    MetricSpec("pushes_total", "pushes", "pushes acknowledged by every shard"),
    MetricSpec("loss", "nats for cross-entropy", "mean loss of the last mini-batch"),
    MetricSpec("staleness", "versions", _STALENESS, buckets=STALENESS),
    MetricSpec("phase_seconds_total", "seconds", "time of this replica, by phase", {"phase": PHASES}),
    MetricSpec("retries_total", "calls", _AGAIN, {"to": ("coordinator", "ps")}),
    MetricSpec("gpu_memory_bytes", "bytes", "of a CUDA device, and of our pool on it", {"device": (), "kind": ()}),
    MetricSpec("gpu_busy_fraction", "fraction", "share of time that a CUDA device computed", {"device": ()}),
)

_COORDINATOR = (
    MetricSpec("leading", "0 or 1", "1 for the leading coordinator, 0 for a standby", standby=True),
    MetricSpec("leader_epoch", "epochs", "of this leadership; rises when another leads, or the lease had run out"),
    MetricSpec("takeovers_total", "coordinators", "failovers: coordinators replaced after missing heartbeats"),
    MetricSpec("state", "0 or 1", "1 for the state the job is in", {"state": STATES}),
    MetricSpec("members", "processes", "members of the job", {"role": _ROLES}),
    MetricSpec("members_wanted", "processes", "members required by the job file or an operator", {"role": _ROLES}),
    MetricSpec("members_lost_total", "processes", "members that failed or missed heartbeats", {"role": _ROLES}),
    MetricSpec("shards_away", "shards", "shards that failed, or restarted and are not loaded yet"),
    MetricSpec("shards_back_total", "shards", "shards restored from a snapshot set"),
    MetricSpec("shards_unfollowed", "shards", "replicated shards without a follower in sync"),
    MetricSpec("promotions_total", "shards", "followers promoted after their leader failed"),
    MetricSpec("segments_moved_total", "segments", "segments migrated between shards during training"),
    MetricSpec("longest_move_seconds", "seconds", "at most, for which no shard served the segments of one migration"),
    MetricSpec("pushes_twice_total", "pushes", "pushes trained twice because of failures"),
    MetricSpec("steps_left_out_total", "steps", "steps left out by loss scalers of scripts, as a gradient overflowed"),
    MetricSpec("pushes_lost_total", "pushes", "pushes lost with a failed shard"),
    MetricSpec("residual_lost_total", "gradient units", "magnitudes lost with residuals of failed replicas"),
    MetricSpec("leases_outstanding", "leases", "ranges of samples handed out and not done"),
    MetricSpec("lease_backlog", "leases", "until the job's end: leases not done, and full ones for what is not leased"),
    MetricSpec("leases_expired_total", "leases", "leases revoked unfinished because their holder was removed"),
    MetricSpec("retries_total", "calls", _AGAIN, {"to": ("ps",)}),
    MetricSpec("refused_total", "calls", "calls refused", {"reason": ()}),
    MetricSpec("samples_total", "samples", "samples done"),
    MetricSpec("pushes_total", "pushes", "pushes acknowledged, as replicas reported"),
    MetricSpec("rounds_total", "rounds", "rounds that are over, of a job in lockstep"),
    MetricSpec("pushes_late_total", "pushes", "pushes that came after the end of their round"),
    MetricSpec("table_cache_reads_total", "keys", "keys that replicas looked for in caches of rows", {"table": ()}),
    MetricSpec("table_cache_hits_total", "keys", "of these, keys whose rows were there", {"table": ()}),
    MetricSpec("bytes_total", "bytes", "segments that replicas sent and received, in all ways", _DIRECTIONS),
    MetricSpec("phase_seconds_total", "seconds", "time of all replicas by phase, as they report it", {"phase": PHASES}),
    MetricSpec("samples_wanted", "samples", "samples after which the job ends"),
    MetricSpec("eta_seconds", "seconds", "until the first of the job's limits is reached, at the speed of now"),
    MetricSpec("progress_age_seconds", "seconds", "since samples were last done, or an evaluation"),
    MetricSpec("progress_deadline_seconds", "seconds", "time that a lease may make no progress, from the job file"),
    MetricSpec("epoch", "epochs", "passes over the training data, with its fraction"),
    MetricSpec("loss", "nats for cross-entropy", "mean training loss over the last reports"),
    MetricSpec("losses_not_finite_total", "losses", "losses that were infinite or not a number"),
    MetricSpec("validation_loss", "nats for cross-entropy", "mean loss at the last evaluation"),
    MetricSpec("validation_accuracy", "fraction", "share of right answers at the last evaluation"),
    MetricSpec("validation_metric", "as the metric", "a metric of the job at the last evaluation", {"metric": ()}),
    MetricSpec("staleness_recent", "versions", "mean staleness of about the last 100 pushes; in lockstep in rounds"),
    MetricSpec("staleness_bound", "versions", "bound of the staleness, with the current replicas"),
    MetricSpec("stragglers", "replicas", "replicas that need more than twice the median's work for a sample"),
    MetricSpec("snapshot_age_seconds", "seconds", "since the newest snapshot set was complete"),
    MetricSpec("snapshot_interval_seconds", "seconds", "interval of snapshot sets, from the job file"),
    MetricSpec("disk_free_bytes", "bytes", "free where the run folder is"),
    MetricSpec("disk_size_bytes", "bytes", "size of the file system where the run folder is"),
    MetricSpec("iterations_total", "iterations", "iterations of a batch method"),
    MetricSpec("evaluations_total", "passes", "passes of a batch method over its batch"),
    MetricSpec("gradient_norm", "loss units per parameter unit", "length of a batch method's gradient"),
    MetricSpec("step_length", "directions", "a batch method's last step, in lengths of its direction"),
    MetricSpec("bundles_total", "bundles", "bundles of portions that replicas computed, copies left out"),
    MetricSpec("backups_launched_total", "bundles", "copies of bundles that were given to the idle"),
    MetricSpec("backups_won_total", "bundles", "copies of bundles that were done first"),
)

TABLE: Mapping[str, tuple[MetricSpec, ...]] = {"ps": _SHARD, "worker": _WORKER, "coordinator": _COORDINATOR}
