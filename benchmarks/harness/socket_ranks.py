"""Ranks joined by sockets, each a process: on hosts of their own (hosts.py), or all on this one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import checkout, hosts, options
from dbelief.worker.comm import Communicator
from dbelief.worker.comm.sockets import Listener, connect_mesh

PORT = 7077
MEET_S = 60.0
SETTINGS = {"tcp_congestion_control": "reno", "tcp_rmem": "4096 65536 131072"}


def run_joined(script: str, count: int, seconds: float, rate_mbit: float = 0.0) -> list[Any]:
    """Run so many ranks of this script with its own options; the JSON lines of rank 0.

    The script parses them by `parse`, and its ranks meet by `groups`.

    Parameters
    ----------
    rate_mbit
        Of the links between hosts that are made for them by DBELIEF_HOSTNET; 0 for one host.
    """
    prefix = f"dbj{os.getpid() % 10_000}"
    addresses = [f"{hosts.address(1 + rank)}:{PORT}" for rank in range(count)] if rate_mbit else free_addresses(count)
    command = [*checkout.command(script), *sys.argv[1:], "--addresses", ",".join(addresses), "--rank"]
    with contextlib.ExitStack() as stack:
        if rate_mbit:
            stack.enter_context(
                hosts.network(Path(os.environ["DBELIEF_HOSTNET"]), prefix, count, rate_mbit, seconds + 60)
            )
            for rank in range(count):
                settle(hosts.inside(prefix, 1 + rank))
        ranks = []
        for rank in range(count):
            on_host = hosts.inside(prefix, 1 + rank) if rate_mbit else []
            pipe = subprocess.PIPE if rank == 0 else None
            ranks.append(subprocess.Popen([*on_host, *command, str(rank)], cwd=checkout.ROOT, stdout=pipe, text=True))
        try:
            printed, _ = ranks[0].communicate(timeout=seconds)
            codes = [process.wait(MEET_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    if any(codes):
        raise SystemExit(f"{script}: ranks ended with {codes}")
    return [json.loads(line) for line in printed.splitlines()]


def settle(on_host: list[str]) -> None:
    """Set small windows and Reno on a host.

    0.2 ms of 200 Mbit/s are 5 KB, and a link of `hostnet` queues 500 KB: windows that grow beyond fill the queues, drop
    packets where many ranks send to one, and with both directions full cost this machine more than its two cores.
    """
    for name, value in SETTINGS.items():
        subprocess.run([*on_host, "sh", "-c", f'echo "{value}" >/proc/sys/net/ipv4/{name}'], check=True)


def free_addresses(count: int) -> list[str]:
    """Free ports of this host."""
    with contextlib.ExitStack() as stack:
        spots = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return ["{}:{}".format(*spot.getsockname()) for spot in spots]


def parse(parser: argparse.ArgumentParser, rank_main: Callable[[argparse.Namespace], None]) -> argparse.Namespace:
    """Parse the options; in a process that is a rank, run `rank_main` with them and exit."""
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=options.words, default=[], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank is not None:
        rank_main(chosen)
        raise SystemExit(0)
    return chosen


@contextlib.contextmanager
def groups(
    rank: int, addresses: Sequence[str], sizes: Sequence[int], deadline_s: float
) -> Iterator[dict[int, Communicator]]:
    """The groups of this rank, by size; a group of N consists of the first N ranks."""
    host, _, port = addresses[rank].rpartition(":")
    listener = Listener(host, int(port))
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        made = {}
        for generation, size in enumerate(sorted(sizes, reverse=True), start=1):
            if rank < size:
                engine = connect_mesh(listener, "a benchmark", generation, rank, addresses[:size], MEET_S)
                made[size] = stack.enter_context(Communicator(engine, deadline_s))
        yield made
