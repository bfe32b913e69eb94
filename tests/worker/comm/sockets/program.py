"""A rank of a group: `python -m tests.worker.comm.sockets.program ADDRESSES RANK`; sums until another one dies."""

from __future__ import annotations

import sys

import numpy as np

from dbelief.errors import RankFailure
from worker.comm import Communicator
from worker.comm.collectives import RingAllreduce
from worker.comm.sockets import Listener, connect_mesh


def main() -> None:
    addresses, rank = sys.argv[1].split(","), int(sys.argv[2])
    host, _, port = addresses[rank].rpartition(":")
    listener = Listener(host, int(port))
    with Communicator(connect_mesh(listener, "a job", 1, rank, addresses, 30.0), 30.0) as comm:
        summed, array = RingAllreduce(comm, 100_003, np.float32, chunk=10_000), np.ones(100_003, np.float32)
        try:
            summed(array)
            print("summing", flush=True)
            while True:
                array.fill(1)
                summed(array)
                assert (array == comm.size).all()
        except RankFailure as died:
            print(died, flush=True)
            sys.exit(3)


main()
