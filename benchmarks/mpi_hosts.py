"""Ranks of mpiexec, one on each host of hosts.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hosts import address, hosts, inside


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
