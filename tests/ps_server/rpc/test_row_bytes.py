"""Bytes of a step with a table on its TCP connections, over what its mini-batch touches."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.harness.tcp_bytes import tcp_bytes
from dbelief.core.layout import make_segments
from dbelief.core.placement import Fetch
from dbelief.core.push import Push
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.table import SparseTable, pack
from tests.ps_server.servers import A, Job

pytestmark = pytest.mark.processes

DENSE = make_segments([(0, 61)], 8)
WIDTH, KEYS, STEPS = 16, 600, 3
TABLE = SparseTable("user", WIDTH, table_salt(0, "user"), 0.01, 0.1, len(DENSE), 32)


def test_bytes_of_a_connection_are_counted() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        before, files = tcp_bytes(), os.listdir("/proc/self/fd")
        client.sendall(bytes(1000))
        assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
        accepted.sendall(bytes(77))
        assert len(client.recv(77, socket.MSG_WAITALL)) == 77
        after = tcp_bytes()
        assert os.listdir("/proc/self/fd") == files, "none is left open"
    assert (after.sent - before.sent, after.received - before.received) == (1077, 1077)


@pytest.mark.parametrize("direct", [True, False])
def test_a_step_takes_little_more_bytes_than_it_touches(start: Callable[..., Job], direct: bool) -> None:
    """Rows read by key, and pushed with the dense numbers, which the reply has; what gRPC adds is counted too."""
    job = start(spans=DENSE, tables={TABLE: "adagrad"})
    client, versions, rng = job.client(A, shares_memory=False, direct=direct), job.held(), np.random.default_rng(0)
    client.pull(job.full(0.0), versions)

    def step(number: int) -> None:
        keys = np.unique(rng.integers(-(2**62), 2**62, KEYS))
        (rows,) = client.pull_rows({TABLE: keys}, versions)
        order, parts = TABLE.split(keys)
        packed = {index: pack(keys[order][own], rows[order][own]) for index, own in parts}
        fetch = Fetch(job.full(0.0), versions)
        client.push(job.full(1.0), versions, Push(A, number, np.float32(0.1)), fetch, rows=packed)

    step(1)  # opens the streams
    before = tcp_bytes()
    for number in range(2, 2 + STEPS):
        step(number)
    received = tcp_bytes().received - before.received  # both ends of each connection are in this process
    touched = STEPS * (KEYS * (8 + 4 * WIDTH + 8 + 4 * WIDTH) + 8 * job.placement.size)
    assert touched < received <= 1.1 * touched
