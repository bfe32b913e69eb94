"""A program that calls a job's segments and records a history: `python client.py OPTIONS`, as JSON (`Options`).

Segment s is numbers 1024 s to 1024 s + 1023 of the job's only tensor. The first of them are the object of the history,
one number for each client. Where the job has a table, each of its buckets is an object too, behind the segments: rows
of `KEYS` keys, all alike, with a number for each client. A push adds to all of them, and a pull reads them by key.

A line is written before each call and after it: a killed program leaves its last call. The calls are those of a worker:
the program has its session, and with a bound on staleness also its leases.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.layout import Layout
from dbelief.core.push import PARAMETERS, Push
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.sparse.table import number_tables, pack
from dbelief.training.initial_values import HeldTensors, InitialValues
from dbelief.training.session import JobContext, OwnModel, Session

SEGMENT = 1024
"""Numbers of a segment: the least that a shard makes one of."""
KEYS = 2
"""Keys of each bucket of a table."""
TORN = -1
"""What is recorded of a number that rows of one bucket do not have alike: no order of calls explains it."""
LARGEST = 1000
"""Largest number that an exchange sends: after 10,000 exchanges the centre is still exact in float32."""
RATE = np.float32(2.0)
"""Moving rate of exchanges: w + 2 (x - w) = 2 x - w."""


@dataclass(frozen=True)
class Options:
    """What a client program does.

    Attributes
    ----------
    address
        Of the coordinator, host:port.
    client, clients
        Its index in the history, and how many there are at most.
    folder
        Where it writes `client-INDEX.jsonl`, and looks for a file `stop`.
    calls
        Calls that it makes at least; it ends then, if there is a file `stop`.
    shared_memory
        Whether it shares memory with shards of its machine.
    pulls
        Share of pulls among its calls.
    exchanges
        Whether it exchanges and pulls; else it pushes and pulls.
    staleness
        The job's bound on staleness, at least 1; the client is a replica then, with leases. None: none.
    segments
        Of the tensor that the program brings to a job with a table; 0: the job has a model and no table.
    """

    address: str
    client: int
    clients: int
    folder: str
    calls: int
    shared_memory: bool
    pulls: float = 0.5
    exchanges: bool = False
    staleness: int | None = None
    segments: int = 0


class Buckets:
    """The job's table: reads rows of all of its buckets, and has what a push adds to them."""

    def __init__(self, options: Options, session: Session) -> None:
        self._parameters = session.parameters
        (self._table,) = number_tables(session.job.tables, session.job.seed, session.parameters.placement.dense)
        assert self._table.width == options.clients, "a number for each client"
        candidates = np.arange(-50 * self._table.count, 50 * self._table.count)
        order, parts = self._table.split(candidates)
        own = {index: candidates[order[part]][:KEYS] for index, part in parts}
        assert [keys.size for keys in own.values()] == [KEYS] * self._table.count, "so many keys are in every bucket"
        gradient = np.zeros((KEYS, options.clients), np.float32)
        gradient[:, options.client] = -1.0
        self._keys = np.concatenate(list(own.values()))
        self.added = {index: pack(keys, gradient) for index, keys in own.items()}

    def read(self, versions: np.ndarray, clock: int) -> list[list[int]]:
        """Numbers of each bucket."""
        (rows,) = self._parameters.pull_rows({self._table: self._keys}, versions, clock)
        alike = rows.reshape(self._table.count, KEYS, -1)
        same = (alike == alike[:, :1]).all(axis=1)
        read: list[list[int]] = np.where(same, alike[:, 0], TORN).astype(np.int64).tolist()
        return read


class Program:
    """One client with its session and its record."""

    def __init__(self, options: Options, session: Session, record: int) -> None:
        self._options, self._session, self._record = options, session, record
        parameters, size = session.parameters, session.layout.size
        dense = parameters.placement.spans[: parameters.placement.dense]
        assert {span.length for span in dense} == {SEGMENT}, dense
        self._buckets = Buckets(options, session) if options.segments else None
        self._segments = size // SEGMENT
        self._values, self._gradient = parameters.array(size), parameters.array(size)
        self._versions = np.full(len(parameters.placement.spans), -1, np.int64)
        self._random = random.Random(options.client)
        self._gradient.reshape(self._segments, SEGMENT)[:, options.client] = -1.0
        self._made = 0
        self._last_lease = 0
        self._progress = wire.Progress(sequence=session.sequences.get(PARAMETERS, 0))

    def _write(self, **fields: Any) -> None:
        line = {"client": self._options.client, "time": time.monotonic(), **fields}
        os.write(self._record, (json.dumps(line, separators=(",", ":")) + "\n").encode())

    def _read(self) -> list[list[int]]:
        numbers = self._values.reshape(self._segments, SEGMENT)[:, : self._options.clients]
        read: list[list[int]] = numbers.astype(np.int64).tolist()
        return read

    def _call(self, call: Callable[[], dict[str, Any]], **fields: Any) -> None:
        self._write(**fields)
        answer = call()
        self._write(done=True, **answer)
        self._made += 1

    def pull(self, clock: int | None = None) -> None:
        """Read all segments."""
        if self._options.exchanges:
            self._versions.fill(-1)  # an exchange has stored the version after it, and the numbers from before it

        def call() -> dict[str, Any]:
            self._session.parameters.pull(self._values, self._versions, clock=clock or 0)
            rows = self._buckets.read(self._versions, clock or 0) if self._buckets is not None else []
            return {"read": self._read() + rows}

        self._call(call, **_clocked(clock, self._options.staleness))

    def push(self, clock: int | None = None, lease: int = 0, position: int = 0) -> None:
        """Add 1 to the own number of each segment; `lease`, `position`: of the push."""
        session, progress = self._session, self._progress
        sequence = session.sequences[PARAMETERS] = session.next_sequence()
        push = Push(session.pusher, sequence, np.float32(1), 1, clock=clock or 0, lease=lease, position=position)
        rows = self._buckets.added if self._buckets is not None else None

        def call() -> dict[str, Any]:
            pushed = session.parameters.push(self._gradient, self._versions, push, rows=rows)
            progress.lease, progress.position, progress.sequence = lease, position, sequence
            progress.pushes, progress.samples = progress.pushes + 1, progress.samples + 1
            progress.steps, progress.lost = progress.steps + 1, progress.lost + pushed.lost
            return {"lost": pushed.lost} if pushed.lost else {}

        self._call(call, push=True, **_clocked(clock, self._options.staleness))

    def exchange(self) -> None:
        """Move all segments towards a random number, and get what they were."""
        sent = self._random.randrange(-LARGEST, LARGEST + 1)
        session = self._session
        self._gradient.reshape(self._segments, SEGMENT)[:, self._options.client] = sent
        session.sequences[PARAMETERS] = session.next_sequence()
        push = Push(session.pusher, session.sequences[PARAMETERS], RATE)

        def call() -> dict[str, Any]:
            pushed = session.parameters.exchange(self._gradient, self._values, self._versions, push)
            return {"read": self._read(), **({"lost": pushed.lost} if pushed.lost else {})}

        self._call(call, exchange=sent)

    def run(self) -> None:
        """Make calls until there are enough."""
        stop = Path(self._options.folder) / "stop"
        while not (self._made >= self._options.calls and stop.exists()):
            if self._session.member.over:
                raise SystemExit(f"the job is over for this client: {self._session.member.lost or 'it ended'}")
            if self._options.staleness is not None:
                self._lease()
            elif self._random.random() < self._options.pulls:
                self.pull()
            elif self._options.exchanges:
                self.exchange()
            else:
                self.push()

    def _lease(self) -> None:
        """Make the calls of one lease: a pull and a push for each mini-batch, which is one sample.

        They are reported with the request for the next one.
        """
        report = wire.ReportRequest(progress=self._progress)
        request = wire.LeaseRequest(last_lease=self._last_lease, report=report)
        reply: wire.LeaseReply = self._session.member.call("Lease", request)
        if not reply.HasField("training"):
            time.sleep(min(0.05, reply.wait_s))
            return
        lease = reply.training
        self._last_lease = lease.lease
        for step in range(lease.stop - lease.start):
            self.pull(lease.clock + step)
            self.push(lease.clock + step, lease.lease, step + 1)


def _clocked(clock: int | None, staleness: int | None) -> dict[str, int | None]:
    return {} if clock is None else {"clock": clock, "staleness": staleness}


def _brought(segments: int) -> OwnModel:
    """The tensor that a script brings: so many segments of zeros."""
    tensors = {"w": np.zeros(segments * SEGMENT, np.float32)}
    layout = Layout.of(tensors)
    return OwnModel(InitialValues(layout, lambda: HeldTensors(layout, tensors)), hashlib.sha256(b"zeros").hexdigest())


def main(options: Options) -> None:
    """Join the job, and make calls until there are enough."""
    record = os.open(
        str(Path(options.folder) / f"client-{options.client}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    role = wire.ROLE_CLIENT if options.staleness is None else wire.ROLE_REPLICA
    task, brought = JobContext.fetch(options.address, 60.0), _brought(options.segments) if options.segments else None
    session = Session.open(task, role, shares_memory=options.shared_memory, brought=brought)
    try:
        Program(options, session, record).run()
    finally:
        session.close("it has made its calls")


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
