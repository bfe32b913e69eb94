"""Specification of the events in `events.jsonl`: what each means, and its fields.

The coordinator logs them; a test compares its code with this table, and the reference of the documentation is made
from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON = {
    "time": "UTC, ISO 8601 with milliseconds",
    "elapsed_s": "seconds that the run has lasted, by a monotonic clock",
    "event": "name of the event",
}
"""Fields of every event."""


@dataclass(frozen=True)
class EventSpec:
    """Specification of one event: `fields` maps a field to its meaning."""

    meaning: str
    fields: dict[str, str] = field(default_factory=dict)


EVENTS: Mapping[str, EventSpec] = {
    "state": EventSpec(
        "The job has entered another state.",
        {
            "state": "empty (waiting for its members), initialising, ready (training), closing, done or failed",
            "reason": "why the job ends; empty in other states",
        },
    ),
    "takeover": EventSpec(
        "Another coordinator leads the job, or the same one after a restart.", {"state": "state of the job"}
    ),
    "member": EventSpec(
        "A process joined the job, left it, or was removed after a failure.",
        {
            "role": "replica, shard, follower or client",
            "id": "number of the member in its role",
            "what": "joined, left or died",
            "reason": "why it left or was removed; empty if it joined",
            "name": "name of the process; empty without one",
            "residual": "magnitudes in the codec's residual, lost with a replica; left out if there are none",
        },
    ),
    "progress": EventSpec(
        "Progress of training, at most five events a second.",
        {
            "samples": "training samples done, over all replicas",
            "epoch": "passes over the training data, with the fraction",
            "loss": "mean training loss over the last reports",
            "staleness": "mean staleness of pushes, in versions; with rounds the rounds that they are late",
            "rounds": "rounds that are over; only in lockstep",
            "samples_per_s": "speed of the job, samples per second",
            "members": "number of replicas and clients",
        },
    ),
    "evaluation": EventSpec(
        "An evaluation has ended.",
        {
            "set": "validation or test",
            "samples": "training samples done when the evaluated parameters were current",
            "loss": "mean loss",
            "accuracy": "share of right answers; null if the model has none",
            "metrics": "metrics of the job by name; those that are defined for the samples",
        },
    ),
    "evaluation_failed": EventSpec(
        "An evaluation cannot be made, and is not repeated: the job ends, and its model is written.",
        {"set": "validation or test", "reason": "cause, with its place in the data"},
    ),
    "warm_start": EventSpec(
        "The warm start has ended, and all replicas train.", {"samples": "training samples done by then"}
    ),
    "snapshot": EventSpec("A snapshot set is complete.", {"set": "identifier of the set"}),
    "snapshot_failed": EventSpec("A snapshot set could not be written; the previous one stays valid."),
    "shard_back": EventSpec(
        "A shard was restored after a failure.",
        {
            "shard": "number of the shard",
            "set": "snapshot set it was restored from; null without one",
            "samples": "samples trained when that set was begun",
            "of": "samples trained by now; what was pushed to this shard in between is lost",
        },
    ),
    "promoted": EventSpec(
        "A follower was promoted to leader after the leader of its shard failed.",
        {"shard": "number of the shard", "set": "always null: no set was loaded"},
    ),
    "followed": EventSpec(
        "A shard has a follower in sync.", {"shard": "number of the shard", "name": "name of the follower's process"}
    ),
    "table_full": EventSpec(
        "A table has as many rows as it may have: keys without a row get none from now on. Once a table.",
        {"table": "name of the table", "shard": "number of the shard that was full first"},
    ),
    "unfollowed": EventSpec(
        "A shard has lost its follower.", {"shard": "number of the shard", "reason": "why the follower was removed"}
    ),
    "rolled_back": EventSpec(
        "All shards and the batch method were reset to a snapshot set.",
        {"set": "identifier of the set", "iterations": "number of iterations that are undone"},
    ),
    "scaling": EventSpec(
        "Resharding has started.", {"from": "number of shards so far", "to": "requested number of shards"}
    ),
    "shard_taken_in": EventSpec("A new shard is ready to receive segments.", {"shard": "number of the shard"}),
    "not_moved": EventSpec(
        "A migration of segments failed; they stay at their shard.",
        {
            "shard": "number of the shard that keeps them",
            "to": "number of the shard that was to receive them",
            "segments": "number of segments",
            "reason": "cause of the failure",
        },
    ),
    "scaled": EventSpec(
        "Resharding is complete.",
        {
            "from": "number of shards before",
            "to": "number of shards now",
            "seconds": "duration",
            "segments": "number of segments that were migrated",
            "bytes": "their size on the wire",
            "longest_s": "longest time in seconds for which no shard served the segments of one migration",
        },
    ),
    "workers_scaled": EventSpec(
        "`scale: auto` has changed the number of workers.",
        {
            "from": "number of workers so far",
            "to": "requested number of workers",
            "why": "more, fewer (nearly nothing is lost), or back (too little came of the last change)",
            "samples_per_s": "measured speed of the former number, if all its workers train",
            "training": "workers that trained, mean over the measurement",
            "measured_s": "duration of the measurement, seconds",
            "factor": "predicted speed as a multiple of the measured one; with back, what the last change has brought",
        },
    ),
    "iteration": EventSpec(
        "A batch method has completed an iteration.",
        {
            "iteration": "number of the iteration, from 1",
            "loss": "loss at the new parameters",
            "gradient_norm": "length of the gradient at the new parameters",
            "step": "length of the step, as a multiple of its direction",
            "evaluations": "passes over the batch so far",
            "skipped": "correction pairs that were skipped so far",
        },
    ),
    "pass": EventSpec(
        "A batch method has completed a pass over its batch.",
        {
            "number": "number of the pass",
            "iteration": "number of the iteration that contains it",
            "bundles": "bundles of portions",
            "portions": "portions of the batch",
            "samples": "samples of the batch",
            "loss": "mean loss, without l2",
            "seconds": "from the first bundle assigned to the last one reported",
            "launched": "backups that were started",
            "won": "backups that ended before the original",
        },
    ),
    "bundle_failed": EventSpec(
        "A replica could not compute a bundle of a batch method; another replica computes it.",
        {
            "replica": "number of the replica",
            "start": "first sample of the bundle",
            "stop": "sample after its last one",
            "reason": "cause of the failure",
        },
    ),
}
