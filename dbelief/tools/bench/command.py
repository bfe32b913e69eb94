"""`dbelief bench`: performance of this machine, and how much of it dbelief uses."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from dbelief.process.terminal.command_group import CommandGroup
from dbelief.process.terminal.console import cli_errors


@click.group("bench", cls=CommandGroup)
def command() -> None:
    """Measure the performance of this machine and of dbelief on it."""


def _count(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Parse a count such as 64M (64,000,000); k, M and G are decimal."""
    factor = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise click.BadParameter(f"must be a whole number above 0, with k, M or G behind it or nothing, not {text!r}")
    return int(digits) * factor


@command.command("apply")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@click.option("--parameters", default="64M", show_default=True, callback=_count, help="float32 numbers held.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Interleaved rounds per rule.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that share the work.")
def bench_apply(as_json: bool, parameters: int, rounds: int, threads: int) -> None:
    """Time every update rule against the memory bandwidth, and against torch's fused optimisers if installed."""
    from dbelief.tools.bench import apply

    results = apply.measure(parameters, rounds, threads)
    if as_json:
        print(json.dumps(apply.figures(parameters, rounds, threads, results)))
    else:
        apply.show(parameters, results)


_AT_LEAST_1 = click.IntRange(1)


@command.command("kernels")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@click.option(
    "--tiles", type=(_AT_LEAST_1, _AT_LEAST_1), default=(20, 20), show_default=True, help="Rows and columns of tiles."
)
@click.option("--window", type=_AT_LEAST_1, default=5, show_default=True, help="Tiles that a block sees each way.")
@click.option("--depth", type=_AT_LEAST_1, default=48, show_default=True, help="Numbers in a tile.")
@click.option("--neurons", type=_AT_LEAST_1, default=128, show_default=True, help="Neurons of a block.")
@click.option("--batch", type=_AT_LEAST_1, default=96, show_default=True, help="Samples of a mini-batch.")
@click.option("--rounds", type=_AT_LEAST_1, default=15, show_default=True, help="Interleaved rounds.")
@click.option("--threads", type=_AT_LEAST_1, default=1, show_default=True, help="BLAS threads, on a CPU.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where the kernels run; auto: the GPU where there is one.",
)
@click.option(
    "--math",
    type=click.Choice(["float32", "tf32", "bf16"]),
    default="float32",
    show_default=True,
    help="How Wx and δx^T are multiplied on a GPU; the dense product stays float32.",
)
def bench_kernels(
    as_json: bool,
    tiles: tuple[int, int],
    window: int,
    depth: int,
    neurons: int,
    batch: int,
    rounds: int,
    threads: int,
    device: Literal["auto", "cpu", "cuda"],
    math: Literal["float32", "tf32", "bf16"],
) -> None:
    """Time the block-local kernels against one dense matrix product with the same number of operations."""
    with cli_errors():
        from dbelief.arrays.backend import select_backend
        from dbelief.nn.kernels import Blocks
        from dbelief.tools.bench import kernels

        try:
            blocks = Blocks(*tiles, window, depth, neurons)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        backend = select_backend(device)
        if backend.name == "numpy" and math != "float32":
            raise click.UsageError(f"--math {math}: the CPU multiplies in float32 alone")
        results, name = kernels.measure(blocks, batch, rounds, backend, threads, math), kernels.device_name(backend)
        if as_json:
            print(json.dumps(kernels.figures(blocks, batch, rounds, name, results)))
        else:
            kernels.show(name, results)


def _counts(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Parse comma-separated counts: 1,16,64 is three numbers."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"must be whole numbers above 0 with commas between, not {text!r}")
    return sorted({int(part) for part in parts})


@command.command("wire")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of tables.")
@click.option(
    "--transport",
    type=click.Choice(["tcp", "shm", "both"]),
    default="both",
    show_default=True,
    help="TCP, shared memory, or one after the other.",
)
@click.option("--sizes", default="1,16,64,160", show_default=True, callback=_counts, help="Sizes of the vector, MiB.")
@click.option("--rounds", type=_AT_LEAST_1, default=25, show_default=True, help="Interleaved rounds of each size.")
@click.option("--workers", default="1,2,4", show_default=True, callback=_counts, help="Numbers of workers at a time.")
@click.option("--shards", default="1,2", show_default=True, callback=_counts, help="Numbers of shards.")
@click.option("--turns", type=_AT_LEAST_1, default=100, show_default=True, help="Pushes, and pulls, of each worker.")
@click.option(
    "--crowd-mib", type=_AT_LEAST_1, default=16, show_default=True, help="Size of the vector of several workers, MiB."
)
@click.option("--steps", type=_AT_LEAST_1, default=300, show_default=True, help="Pulls and pushes of the small model.")
@click.option(
    "--seconds",
    type=_AT_LEAST_1,
    default=50,
    show_default=True,
    help="Time of it all, about: fewer rounds, turns and steps where these take longer.",
)
def bench_wire(as_json: bool, transport: str, **wanted: Any) -> None:
    """Time pull, push and exchange between workers and shards, over TCP and shared memory, against a bare socket.

    Sizes below 32 MiB get four times as many rounds.
    """
    from dbelief.rpc.grpc_settings import prepare_process

    prepare_process()
    with cli_errors():
        from dbelief.errors import Interrupted
        from dbelief.tools.bench import wire, wire_table
        from dbelief.tools.bench.workers import TRANSPORTS

        transports = TRANSPORTS if transport == "both" else (transport,)
        try:
            found = wire.measure(transports, **wanted, progress=lambda what: click.echo(f"measuring: {what}", err=True))
        except KeyboardInterrupt:
            raise Interrupted("stopped before it was done") from None
        if as_json:
            print(json.dumps(found))
        else:
            wire_table.show(found)


@command.command("peer", hidden=True)
@click.argument("kind", type=click.Choice(["socket", "worker"]))
@click.option("--connect", required=True, metavar="HOST:PORT", help="Where the process that measures listens.")
def bench_peer(kind: str, connect: str) -> None:
    """Run a peer process of a `dbelief bench` measurement (internal)."""
    from dbelief.rpc.grpc_settings import limit_threads, prepare_process

    prepare_process()
    limit_threads(1)
    with cli_errors():
        from dbelief.tools.bench import baselines, peers, workers

        peers.run_peer(workers.be_worker if kind == "worker" else baselines.be_socket, connect)
