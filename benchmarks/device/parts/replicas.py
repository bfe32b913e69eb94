"""Two replicas that share one device, beside one: a job of digits, and the samples per second of the whole run."""

from __future__ import annotations

from benchmarks.device.findings import Findings, check_close
from benchmarks.device.parts import jobs
from benchmarks.harness import checkout
from dbelief.rundir.summary import Summary

LARGE, SMALL = {"limits__epochs": 40}, {"limits__samples": 3_200}
"""Long enough for the replica that joins later."""
REPLICAS = 2


def measure(found: Findings, small: bool) -> None:
    """Train with two replicas and with one; both must have trained, and learnt as much."""
    job, fields = checkout.EXAMPLES / "digits.yaml", SMALL if small else LARGE
    one, two = (jobs.train(job, "cuda", fields, replicas) for replicas in (1, REPLICAS))
    shares = [trained for trained in two.samples_per_replica.values() if trained]
    assert len(shares) == REPLICAS, f"only {len(shares)} replicas trained"
    assert two.test_accuracy is not None
    found.figure("test accuracy", two.test_accuracy, beside={"one replica": one.test_accuracy})
    found.figure("samples of the run", speed(two), "1/s", {"one replica": speed(one)})
    found.figure("samples of the replica with fewer", min(shares) / two.samples, "of all")
    check_close("test accuracy of two replicas", two.test_accuracy, one.test_accuracy, jobs.APART)


def speed(summary: Summary) -> float:
    """Samples per second, from the start of the run to its end."""
    return summary.samples / summary.wall_s
