"""Table of all Prometheus metrics: name, kind, unit, labels, help.

A name in Prometheus is `dbelief_ROLE_NAME`: samples counted by replicas and samples counted by the coordinator are the
same samples, and must not be added up. Labels have few values, each known or bounded by the job (named vectors, roles,
ranks of a list): never a member's id, which a scrape adds as `instance`, and never a segment's, of which a large model
has tens of thousands. An unknown value is NaN, for which no rule's comparison is true.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PHASES = ("fetch", "compute", "push", "wait", "data")
STATES = ("empty", "initialising", "ready", "closing", "done", "failed")
HOTTEST = 5
"""Number of segments of a shard that are reported, by rank."""

_VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
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
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    standby: bool = False


_STALENESS = "versions applied between the parameters a gradient was computed on and the gradient"
_AGAIN = "calls made again because nobody answered, by who was called"

_SHARD = (
    MetricSpec("pushes_total", "counter", "pushes", "pushes acknowledged", {"vector": ()}),
    MetricSpec("pulls_total", "counter", "pulls", "pulls answered", {"vector": ()}),
    MetricSpec(
        "bytes_total", "counter", "bytes", "payload of segments, in messages", {"direction": ("received", "sent")}
    ),
    MetricSpec(
        "shared_bytes_total",
        "counter",
        "bytes",
        "payload of segments, through shared memory",
        {"direction": ("received", "sent")},
    ),
    MetricSpec("apply_seconds", "histogram", "seconds", "applying one segment", buckets=_APPLY_S),
    MetricSpec("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
    MetricSpec("refused_total", "counter", "calls", "calls refused", {"reason": ()}),
    MetricSpec(
        "duplicates_total", "counter", "segments", "segments of pushes that came again, and were not applied again"
    ),
    MetricSpec("retries_total", "counter", "calls", _AGAIN, {"to": ("coordinator",)}),
    MetricSpec(
        "lock_waits_total", "counter", "times", "times that somebody found a segment's lock held, mostly by a push"
    ),
    MetricSpec("lock_wait_seconds_total", "counter", "seconds", "waiting for segments' locks, over all threads"),
    MetricSpec(
        "hottest_pushes_per_second", "gauge", "pushes per second", "of the busiest ones, by rank", {"rank": _RANKS}
    ),
    MetricSpec(
        "hottest_segment", "gauge", "segment number", "which segments those are, in the job's table", {"rank": _RANKS}
    ),
    MetricSpec("hottest_share", "gauge", "fraction", "share of the busiest segment in all that segments were pushed"),
    MetricSpec("segments", "gauge", "segments", "segments kept by this shard"),
    MetricSpec("parameters", "gauge", "parameters", "parameters kept by this shard"),
    MetricSpec("snapshot_seconds", "histogram", "seconds", "writing one snapshot", buckets=_SNAPSHOT_S),
    MetricSpec("snapshot_age_seconds", "gauge", "seconds", "since this shard's part of a set was last written"),
    MetricSpec("disk_free_bytes", "gauge", "bytes", "free where this shard last wrote a snapshot"),
    MetricSpec("disk_size_bytes", "gauge", "bytes", "size of the file system where this shard last wrote a snapshot"),
)

_WORKER = (
    MetricSpec("samples_total", "counter", "samples", "samples trained"),
    MetricSpec("steps_total", "counter", "mini-batches", "mini-batches trained"),
    MetricSpec("pushes_total", "counter", "pushes", "pushes acknowledged by every shard"),
    MetricSpec("loss", "gauge", "nats for cross-entropy", "mean loss of the last mini-batch"),
    MetricSpec("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
    MetricSpec("phase_seconds_total", "counter", "seconds", "where this replica's time went", {"phase": PHASES}),
    MetricSpec("retries_total", "counter", "calls", _AGAIN, {"to": ("coordinator", "ps")}),
    MetricSpec(
        "gpu_memory_bytes", "gauge", "bytes", "of a CUDA device, and of our pool on it", {"device": (), "kind": ()}
    ),
    MetricSpec("gpu_busy_fraction", "gauge", "fraction", "share of time that a CUDA device computed", {"device": ()}),
)

_COORDINATOR = (
    MetricSpec(
        "leading", "gauge", "0 or 1", "1 for the coordinator that leads, 0 for one that stands by", standby=True
    ),
    MetricSpec(
        "leader_epoch", "gauge", "epochs", "of this leadership; rises when another leads, or the lease had run out"
    ),
    MetricSpec(
        "takeovers_total",
        "counter",
        "coordinators",
        "coordinators that fell silent and were followed by another",
    ),
    MetricSpec("state", "gauge", "0 or 1", "1 for the state the job is in", {"state": STATES}),
    MetricSpec("members", "gauge", "processes", "members of the job", {"role": _ROLES}),
    MetricSpec(
        "members_wanted", "gauge", "processes", "members that the job file, or a person, asks for", {"role": _ROLES}
    ),
    MetricSpec("members_lost_total", "counter", "processes", "members that died or fell silent", {"role": _ROLES}),
    MetricSpec("shards_away", "gauge", "shards", "shards that are dead, or alive again and not loaded yet"),
    MetricSpec("shards_back_total", "counter", "shards", "shards that came back, with what a snapshot set held"),
    MetricSpec(
        "shards_unfollowed", "gauge", "shards", "shards that are to be replicated and have no follower to count on"
    ),
    MetricSpec("promotions_total", "counter", "shards", "followers that went on in their dead leader's place"),
    MetricSpec(
        "segments_moved_total", "counter", "segments", "segments that went from shard to shard while the job trained"
    ),
    MetricSpec("longest_move_seconds", "gauge", "seconds", "at most, for which nobody served the segments of one move"),
    MetricSpec("pushes_twice_total", "counter", "pushes", "pushes trained twice because of deaths"),
    MetricSpec("pushes_lost_total", "counter", "pushes", "pushes that died with a shard, which came back without them"),
    MetricSpec("residual_lost_total", "counter", "gradient units", "magnitudes that went with residuals of replicas"),
    MetricSpec("leases_outstanding", "gauge", "leases", "ranges of samples handed out and not done"),
    MetricSpec(
        "leases_expired_total", "counter", "leases", "leases taken back unfinished, for their holder was given up"
    ),
    MetricSpec("retries_total", "counter", "calls", _AGAIN, {"to": ("ps",)}),
    MetricSpec("refused_total", "counter", "calls", "calls refused", {"reason": ()}),
    MetricSpec("samples_total", "counter", "samples", "samples done"),
    MetricSpec("samples_wanted", "gauge", "samples", "samples after which the job ends"),
    MetricSpec(
        "eta_seconds", "gauge", "seconds", "until the first of the job's limits is reached, at the speed of now"
    ),
    MetricSpec("progress_age_seconds", "gauge", "seconds", "since samples were last done, or an evaluation"),
    MetricSpec(
        "progress_deadline_seconds", "gauge", "seconds", "how long a lease may stand still, as the job file says"
    ),
    MetricSpec("epoch", "gauge", "epochs", "passes over the training data, with its fraction"),
    MetricSpec("loss", "gauge", "nats for cross-entropy", "mean training loss over the last reports"),
    MetricSpec("losses_not_finite_total", "counter", "losses", "losses that were infinite or not a number"),
    MetricSpec("validation_loss", "gauge", "nats for cross-entropy", "mean loss at the last evaluation"),
    MetricSpec("validation_accuracy", "gauge", "fraction", "share of right answers at the last evaluation"),
    MetricSpec("staleness_recent", "gauge", "versions", "mean staleness of about the last 100 pushes"),
    MetricSpec(
        "staleness_bound",
        "gauge",
        "versions",
        "what the dial lets staleness be, with the replicas of now",
    ),
    MetricSpec("stragglers", "gauge", "replicas", "replicas that need more than twice the median's work for a sample"),
    MetricSpec("snapshot_age_seconds", "gauge", "seconds", "since the newest snapshot set was complete"),
    MetricSpec(
        "snapshot_interval_seconds", "gauge", "seconds", "from one snapshot set to the next, as the job file says"
    ),
    MetricSpec("disk_free_bytes", "gauge", "bytes", "free where the run folder is"),
    MetricSpec("disk_size_bytes", "gauge", "bytes", "size of the file system where the run folder is"),
    MetricSpec("iterations_total", "counter", "iterations", "iterations of a batch method"),
    MetricSpec("evaluations_total", "counter", "passes", "passes of a batch method over its batch"),
    MetricSpec("gradient_norm", "gauge", "loss units per parameter unit", "length of a batch method's gradient"),
    MetricSpec("step_length", "gauge", "directions", "a batch method's last step, in lengths of its direction"),
    MetricSpec("bundles_total", "counter", "bundles", "bundles of portions that replicas computed, copies left out"),
    MetricSpec("backups_launched_total", "counter", "bundles", "copies of bundles that were given to the idle"),
    MetricSpec("backups_won_total", "counter", "bundles", "copies of bundles that were done first"),
)

TABLE: Mapping[str, tuple[MetricSpec, ...]] = {"ps": _SHARD, "worker": _WORKER, "coordinator": _COORDINATOR}
