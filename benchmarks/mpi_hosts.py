"""Ranks of mpiexec, one on each host of hosts.py, and what a message between two of them takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hosts import address, hosts, inside

from dbelief.worker.comm import Comm

PING_BYTES, PINGS = (1, 1 << 22), (21, 3)


def run_on_hosts(hostnet: Path, count: int, rate_mbit: float, command: Sequence[str], seconds: float) -> str:
    """Run a rank's command on each of so many hosts, which are made for it, and give what they print."""
    prefix = f"dbr{os.getpid() % 10_000}"
    # Over sockets only: MPICH's other way takes the shared memory that real hosts do not have.
    settings = {**os.environ, "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}
    with tempfile.TemporaryDirectory(prefix="mpi-hosts-") as folder:
        launcher = Path(folder) / "launcher"  # mpiexec calls it as ssh: launcher [-x] ADDRESS WORD...
        on_host = " ".join(inside(prefix, 0)).removesuffix("0") + '"${host##*.}"'
        launcher.write_text(f'#!/bin/sh\n[ "$1" = -x ] && shift\nhost=$1\nshift\nexec {on_host} sh -c "$*"\n')
        launcher.chmod(0o700)
        mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", str(launcher)]
        mpiexec += ["-iface", "eth0", "-hosts", ",".join(map(address, range(1, count + 1))), "-n", str(count)]
        whole = [*inside(prefix, 1), *mpiexec, *command]
        with hosts(hostnet, prefix, count, rate_mbit, seconds + 60):
            done = subprocess.run(whole, env=settings, stdout=subprocess.PIPE, text=True, timeout=seconds, check=True)
    return done.stdout


def ping(pair: Comm) -> tuple[float, float]:
    """Give alpha in s and beta in s/byte, between ranks 0 and 1: half the time to and fro, of 1 byte and of 4 MiB."""
    medians = []
    for size, times in zip(PING_BYTES, PINGS, strict=True):
        array, seconds = np.zeros(size, np.uint8), []
        for _ in range(times + 1):
            began_s = time.perf_counter()
            for sends in (True, False) if pair.rank == 0 else (False, True):
                pair.send(array, 1 - pair.rank) if sends else pair.recv(array, 1 - pair.rank)
            seconds.append((time.perf_counter() - began_s) / 2)
        medians.append(statistics.median(seconds[1:]))
    return medians[0], (medians[1] - medians[0]) / (PING_BYTES[1] - PING_BYTES[0])


def carried() -> int:
    """Bytes that this host's link has carried away so far."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
