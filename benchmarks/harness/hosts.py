"""Several hosts on this machine: network namespaces with links between them, made by the program `hostnet`.

`hostnet PREFIX N RATE_MBIT [--delay-ms D --loss-pct L] --seconds S` makes the namespaces PREFIXh1.. with the addresses
10.77.0.1.. on eth0, prints "ready", and removes all on SIGTERM, or S seconds later; it needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import checkout


def add_hostnet(parser: argparse.ArgumentParser) -> None:
    """The path of hostnet."""
    parser.add_argument("--hostnet", type=Path, default=os.environ.get("DBELIEF_HOSTNET"))


def left_out(script: str, hostnet: Path | str | None) -> bool:
    """Whether there is no hostnet, so that the script ends with a message and exit code 0."""
    if hostnet is None:
        print(f"{Path(script).name}: left out, DBELIEF_HOSTNET names no program that makes hosts", file=sys.stderr)
    return hostnet is None


@contextmanager
def network(hostnet: Path, prefix: str, count: int, rate_mbit: float, seconds: float, *more: str) -> Iterator[None]:
    """The network, from its "ready" to the end of the block; `more` are options of hostnet."""
    command = [str(hostnet), prefix, str(count), f"{rate_mbit:g}", "--seconds", f"{seconds:g}", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"{hostnet} did not make the hosts")
            yield
        finally:
            process.terminate()
            process.wait(30)


def inside(prefix: str, host: int) -> list[str]:
    """The prefix of a command that runs on a host, counted from 1."""
    return ["ip", "netns", "exec", f"{prefix}h{host}"]


def address(host: int) -> str:
    """IP address of a host, counted from 1."""
    return f"10.77.0.{host}"


def run_on_hosts(hostnet: Path, count: int, rate_mbit: float, command: Sequence[str], seconds: float) -> str:
    """Run a rank's command on each of so many new hosts; their standard output."""
    prefix = f"dbr{os.getpid() % 10_000}"
    # Over sockets only: MPICH's other way takes the shared memory that real hosts do not have.
    settings = {**os.environ, "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}
    with tempfile.TemporaryDirectory(prefix="mpi-hosts-") as folder:
        launcher = Path(folder) / "launcher"  # mpiexec calls it as ssh: launcher [-x] ADDRESS WORD...
        on_host = " ".join(inside(prefix, 0)).removesuffix("0") + '"${host##*.}"'
        launcher.write_text(f'#!/bin/sh\n[ "$1" = -x ] && shift\nhost=$1\nshift\nexec {on_host} sh -c "$*"\n')
        launcher.chmod(0o700)
        mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", str(launcher)]
        mpiexec += ["-wdir", str(checkout.ROOT)]
        mpiexec += ["-iface", "eth0", "-hosts", ",".join(map(address, range(1, count + 1))), "-n", str(count)]
        whole = [*inside(prefix, 1), *mpiexec, *command]
        with network(hostnet, prefix, count, rate_mbit, seconds + 60):
            done = subprocess.run(whole, env=settings, stdout=subprocess.PIPE, text=True, timeout=seconds, check=True)
    return done.stdout
