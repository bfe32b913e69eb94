"""Copies of the parameters of a running job: read from the shards at intervals, stored on disk, evaluated later.

One copy of N parameters costs the shards a read of 4 N bytes, and the replicas nothing. If the shards hold no new
values since the previous copy, none is stored: replicas that sum among themselves write to the shards only at times.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Literal, Self

import numpy as np

from dbelief.core.placement import Placement
from dbelief.errors import Rejected, RuntimeFailure
from dbelief.job import Every
from dbelief.rpc.client.coordinator_client import OVER, CoordinatorClient
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import placement_from_wire
from dbelief.rundir.folder import ADDRESS

from .time_to_target import RunPoint

LOOK_S = 0.1
DEADLINE_S = 5.0
"""Timeout of a shard's answer, in seconds; short, since a failed copy is retried."""


class Watcher:
    """Thread that makes copies during a `with` block.

    Parameters
    ----------
    run
        The run folder, where the coordinator writes its address.
    copies
        Folder of the copies, which must exist.

    Attributes
    ----------
    copies
        Time and samples of each copy; the parameters of copy n are in `NNNNNN.npy`, (N,) float32.
    """

    def __init__(self, run: Path, copies: Path, every: Every) -> None:
        self._run, self._folder = run, copies
        self._over: Literal["seconds", "samples"] = "seconds" if every.samples is None else "samples"
        self._interval = float(getattr(every, self._over))
        self.copies: list[RunPoint] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        """Start waiting for the run."""
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def read(self, place: int) -> np.ndarray:
        """The (N,) float32 parameters of a copy."""
        values: np.ndarray = np.load(self._path(place))
        return values

    def _path(self, place: int) -> Path:
        return self._folder / f"{place:06}.npy"

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(OSError, RuntimeFailure):  # the run has just ended, or just started
                address = (self._run / ADDRESS).read_text()
                client = CoordinatorClient(address, patience_s=0.0)
                try:
                    self._follow(client)
                    return
                finally:
                    client.close()

    def _follow(self, client: CoordinatorClient) -> None:
        """Make copies from a run's start to its end."""
        began_s: float | None = None
        due, reader = 0.0, _Reader(client, self._run.name)
        try:
            while not self._ended.wait(LOOK_S):
                try:
                    status = client.status()
                    if status.state in OVER:
                        return
                    if status.state < wire.STATE_READY:
                        continue
                    began_s = status.elapsed_s if began_s is None else began_s
                    now = RunPoint(status.elapsed_s - began_s, float(status.samples))
                    at = float(getattr(now, self._over))
                    if at < due and status.state == wire.STATE_READY:  # otherwise this may be the last opportunity
                        continue
                    if (values := reader.read()) is not None:
                        np.save(self._path(len(self.copies)), values)
                        self.copies.append(now)
                    due = at - at % self._interval + self._interval
                except RuntimeFailure:  # a shard or the coordinator failed: the launcher restarts it
                    continue
        finally:
            reader.close()


class _Reader:
    """Reader of the newest parameters, which is not a member of the job."""

    def __init__(self, client: CoordinatorClient, job: str) -> None:
        self._client, self._job = client, job
        self._parameters: ShardedParameterClient | None = None
        self._values, self._versions = np.empty(0, np.float32), np.empty(0, np.int64)

    def read(self) -> np.ndarray | None:
        """The (N,) float32 parameters, overwritten by the next call; None where no segment is new."""
        if self._parameters is None:
            placement = self._placement()
            self._parameters = ShardedParameterClient(
                self._job, placement, deadline_s=DEADLINE_S, refresh=self._placement, direct=False
            )
            self._values = np.empty(placement.size, np.float32)
            self._versions = np.full(len(placement.spans), -1, np.int64)
        before = self._versions.copy()
        self._parameters.pull(self._values, self._versions)
        return None if (before == self._versions).all() else self._values

    def _placement(self) -> Placement:
        """The segments' placement on the shards.

        Raises
        ------
        Rejected
            The job is over.
        """
        status: wire.StatusReply = self._client.call("Status", wire.StatusRequest(placement=True), DEADLINE_S)
        if status.state in OVER or not status.HasField("placement"):
            raise Rejected(f"job {status.job} has no shards")
        return placement_from_wire(status.placement)

    def close(self) -> None:
        """Close all channels."""
        if self._parameters is not None:
            self._parameters.close()
