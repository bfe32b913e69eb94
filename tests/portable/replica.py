"""A worker of a group of two, as a process: prints its address, reads both, trains, and prints digests of what it has.

    python -m tests.portable.replica RANK

Gradients are of a network, by BLAS and `tanh`: of each worker's own half of the data, and so need not be equal. The
rate falls by a power, the sum is clipped, and the rule is Adam, of which each worker has a copy.
"""

from __future__ import annotations

import sys

from dbelief.core.layout import Layout
from dbelief.training.schedule import poly
from tests.equivalence.groups import BATCH, sgd
from tests.equivalence.harness import HOST, network
from worker.comm import Communicator
from worker.comm.sockets import Listener, connect_mesh
from worker.strategies.group_methods import AllreduceSgd

from .digests import digest

STEPS = 40
DEADLINE_S = 60.0


def main() -> None:
    """Be one rank of two."""
    rank, problem = int(sys.argv[1]), network(2 * STEPS * BATCH)
    listener = Listener()
    print(listener.address, flush=True)
    addresses = sys.stdin.readline().split()
    strategy = sgd({"name": "adam", "rate": 0.01}, clip_norm=0.5)
    part = Layout.of(problem.tensors).part(0)
    method = AllreduceSgd(problem.make(), part, HOST, strategy)
    with Communicator(connect_mesh(listener, "portable", 1, rank, addresses, DEADLINE_S), DEADLINE_S) as comm:
        method.join(comm)
        method.result[:] = problem.start
        method.begin()
        for step in range(STEPS):
            first = (2 * step + rank) * BATCH
            rate = poly(0.01, 2 * step * BATCH, power=0.7, total=2 * STEPS * BATCH)
            method.step(problem.batch(0, first, first + BATCH), 0.5, rate, lambda: None)
        print(digest(method.result, *method.state()), float(abs(method.result - problem.start).max()), flush=True)
        comm.barrier()
    listener.close()


if __name__ == "__main__":
    main()
