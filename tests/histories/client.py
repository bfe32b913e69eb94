"""A program that calls a job's segments and records a history: `python client.py ADDRESS CLIENT CLIENTS FILE SHARED`.

Each tensor of the job's model is one object of the history: number c of it counts the pushes of client c, since the
rule subtracts a gradient of -1. A line is written before each call and after it: a killed program leaves its last call.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import dbelief


def main(address: str, client: int, clients: int, file: str, shared: bool) -> None:
    """Push and pull in turn until the job is over; `shared`: through shared memory."""
    record = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(**fields: object) -> None:
        os.write(record, (json.dumps({"client": client, "time": time.monotonic(), **fields}) + "\n").encode())

    with dbelief.connect(address, shared_memory=shared) as job:
        names = list(job.pull())
        gradient = {name: np.zeros_like(values) for name, values in job.pull().items()}
        for values in gradient.values():
            values[client] = -1.0
        while not job.over:
            write(push=True)
            pushed = job.push(gradient, samples=1)
            write(done=True, lost=pushed.lost)
            write(push=False)
            numbers = job.pull()
            write(done=True, read={name: numbers[name][:clients].astype(int).tolist() for name in names})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5] == "1")
