"""The one table of every number that a process offers to Prometheus: name, kind, unit, labels, what it tells.

A name in Prometheus is `dbelief_ROLE_NAME`: samples counted by replicas and samples counted by the coordinator are the
same samples, and must not meet in one sum. Labels take few values, each known or bounded by the job (named vectors,
roles, ranks of a list): never a member's id, which a scrape adds by itself as `instance`, and never a segment's, of
which a large model has tens of thousands. What is not known is NaN, which no rule's comparison is true for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PHASES = ("fetch", "compute", "push", "wait", "data")
STATES = ("empty", "initialising", "ready", "closing", "done", "failed")
HOTTEST = 5
"""Segments of a shard that are told of, by rank."""

_VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_APPLY_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_SNAPSHOT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

_ROLES = ("ps", "worker")
_RANKS = tuple(str(rank) for rank in range(1, HOTTEST + 1))


@dataclass(frozen=True)
class Row:
    """One collector: `labels` maps a label to its values where they are known beforehand, else to ().

    `standby`: offered by a process that stands by for another one too.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    tells: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    standby: bool = False


_STALENESS = "versions applied between the parameters a gradient was computed on and the gradient"
_AGAIN = "calls made again because nobody answered, by who was called"

_SHARD = (
    Row("pushes_total", "counter", "pushes", "pushes acknowledged", {"vector": ()}),
    Row("pulls_total", "counter", "pulls", "pulls answered", {"vector": ()}),
    Row("bytes_total", "counter", "bytes", "payload of segments, in messages", {"direction": ("received", "sent")}),
    Row(
        "shared_bytes_total",
        "counter",
        "bytes",
        "payload of segments, through shared memory",
        {"direction": ("received", "sent")},
    ),
    Row("apply_seconds", "histogram", "seconds", "applying one segment", buckets=_APPLY_S),
    Row("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
    Row("refused_total", "counter", "calls", "calls refused", {"reason": ()}),
    Row("duplicates_total", "counter", "segments", "segments of pushes that came again, and were not applied again"),
    Row("retries_total", "counter", "calls", _AGAIN, {"to": ("coordinator",)}),
    Row("lock_waits_total", "counter", "times", "times that somebody found a segment's lock held, mostly by a push"),
    Row("lock_wait_seconds_total", "counter", "seconds", "waiting for segments' locks, over all threads"),
    Row("hottest_pushes_per_second", "gauge", "pushes per second", "of the busiest ones, by rank", {"rank": _RANKS}),
    Row("hottest_segment", "gauge", "segment number", "which segments those are, in the job's table", {"rank": _RANKS}),
    Row("hottest_share", "gauge", "fraction", "share of the busiest segment in all that segments were pushed"),
    Row("segments", "gauge", "segments", "segments kept by this shard"),
    Row("parameters", "gauge", "parameters", "parameters kept by this shard"),
    Row("snapshot_seconds", "histogram", "seconds", "writing one snapshot", buckets=_SNAPSHOT_S),
    Row("snapshot_age_seconds", "gauge", "seconds", "since this shard's part of a set was last written"),
    Row("disk_free_bytes", "gauge", "bytes", "free where this shard last wrote a snapshot"),
    Row("disk_size_bytes", "gauge", "bytes", "size of the file system where this shard last wrote a snapshot"),
)

_WORKER = (
    Row("samples_total", "counter", "samples", "samples trained"),
    Row("steps_total", "counter", "mini-batches", "mini-batches trained"),
    Row("pushes_total", "counter", "pushes", "pushes acknowledged by every shard"),
    Row("loss", "gauge", "nats for cross-entropy", "mean loss of the last mini-batch"),
    Row("staleness", "histogram", "versions", _STALENESS, buckets=_VERSIONS),
    Row("phase_seconds_total", "counter", "seconds", "where this replica's time went", {"phase": PHASES}),
    Row("retries_total", "counter", "calls", _AGAIN, {"to": ("coordinator", "ps")}),
    Row("gpu_memory_bytes", "gauge", "bytes", "of a CUDA device, and of our pool on it", {"device": (), "kind": ()}),
    Row("gpu_busy_fraction", "gauge", "fraction", "share of time that a CUDA device computed", {"device": ()}),
)

_COORDINATOR = (
    Row("leading", "gauge", "0 or 1", "1 for the coordinator that leads, 0 for one that stands by", standby=True),
    Row("leader_epoch", "gauge", "epochs", "of this leadership; rises when another leads, or the lease had run out"),
    Row(
        "takeovers_total",
        "counter",
        "coordinators",
        "coordinators that fell silent and were followed by another",
    ),
    Row("state", "gauge", "0 or 1", "1 for the state the job is in", {"state": STATES}),
    Row("members", "gauge", "processes", "members of the job", {"role": _ROLES}),
    Row("members_wanted", "gauge", "processes", "members that the job file, or a person, asks for", {"role": _ROLES}),
    Row("members_lost_total", "counter", "processes", "members that died or fell silent", {"role": _ROLES}),
    Row("shards_away", "gauge", "shards", "shards that are dead, or alive again and not loaded yet"),
    Row("shards_back_total", "counter", "shards", "shards that came back, with what a snapshot set held"),
    Row("shards_unfollowed", "gauge", "shards", "shards that are to be replicated and have no follower to count on"),
    Row("promotions_total", "counter", "shards", "followers that went on in their dead leader's place"),
    Row("segments_moved_total", "counter", "segments", "segments that went from shard to shard while the job trained"),
    Row("longest_move_seconds", "gauge", "seconds", "at most, for which nobody served the segments of one move"),
    Row("pushes_twice_total", "counter", "pushes", "pushes trained twice because of deaths"),
    Row("pushes_lost_total", "counter", "pushes", "pushes that died with a shard, which came back without them"),
    Row("residual_lost_total", "counter", "gradient units", "magnitudes that went with residuals of replicas"),
    Row("leases_outstanding", "gauge", "leases", "ranges of samples handed out and not done"),
    Row("leases_expired_total", "counter", "leases", "leases taken back unfinished, for their holder was given up"),
    Row("retries_total", "counter", "calls", _AGAIN, {"to": ("ps",)}),
    Row("refused_total", "counter", "calls", "calls refused", {"reason": ()}),
    Row("samples_total", "counter", "samples", "samples done"),
    Row("samples_wanted", "gauge", "samples", "samples after which the job ends"),
    Row("eta_seconds", "gauge", "seconds", "until the first of the job's limits is reached, at the speed of now"),
    Row("progress_age_seconds", "gauge", "seconds", "since samples were last done, or an evaluation"),
    Row("progress_deadline_seconds", "gauge", "seconds", "how long a lease may stand still, as the job file says"),
    Row("epoch", "gauge", "epochs", "passes over the training data, with its fraction"),
    Row("loss", "gauge", "nats for cross-entropy", "mean training loss over the last reports"),
    Row("losses_not_finite_total", "counter", "losses", "losses that were infinite or not a number"),
    Row("validation_loss", "gauge", "nats for cross-entropy", "mean loss at the last evaluation"),
    Row("validation_accuracy", "gauge", "fraction", "share of right answers at the last evaluation"),
    Row("staleness_recent", "gauge", "versions", "mean staleness of about the last 100 pushes"),
    Row(
        "staleness_bound",
        "gauge",
        "versions",
        "what the dial lets staleness be, with the replicas of now",
    ),
    Row("stragglers", "gauge", "replicas", "replicas that need more than twice the median's work for a sample"),
    Row("snapshot_age_seconds", "gauge", "seconds", "since the newest snapshot set was complete"),
    Row("snapshot_interval_seconds", "gauge", "seconds", "from one snapshot set to the next, as the job file says"),
    Row("disk_free_bytes", "gauge", "bytes", "free where the run folder is"),
    Row("disk_size_bytes", "gauge", "bytes", "size of the file system where the run folder is"),
    Row("iterations_total", "counter", "iterations", "iterations of a batch method"),
    Row("evaluations_total", "counter", "passes", "passes of a batch method over its batch"),
    Row("gradient_norm", "gauge", "loss units per parameter unit", "length of a batch method's gradient"),
    Row("step_length", "gauge", "directions", "a batch method's last step, in lengths of its direction"),
    Row("bundles_total", "counter", "bundles", "bundles of portions that replicas computed, copies left out"),
    Row("backups_launched_total", "counter", "bundles", "copies of bundles that were given to the idle"),
    Row("backups_won_total", "counter", "bundles", "copies of bundles that were done first"),
)

TABLE: Mapping[str, tuple[Row, ...]] = {"ps": _SHARD, "worker": _WORKER, "coordinator": _COORDINATOR}
