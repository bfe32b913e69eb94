"""`dbelief ps`: command that runs one parameter-server shard of a job."""

from __future__ import annotations

from typing import Any

import click

from dbelief.cli.role_options import coordinator_option, direct_option, member_options, role_options, sharing_option
from dbelief.process.terminal.console import cli_errors
from dbelief.rpc.grpc_settings import limit_threads, prepare_process


@click.command("ps")
@coordinator_option
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    envvar="DBELIEF_LISTEN",
    show_envvar=True,
    help="Address to listen on; port 0: any free.",
)
@click.option(
    "--advertise",
    default=None,
    metavar="HOST:PORT",
    help="Address others reach it by; default: --listen, or if that is every address, the one towards the coordinator.",
)
@sharing_option
@direct_option
@role_options("ps", "wait for the next one at the same address, however long")
@member_options("shard", "of applied pushes")
def command(**options: Any) -> None:
    """Run one shard of a job's parameters: store its segments, apply pushes by the job's rule."""
    prepare_process()
    limit_threads(1)
    with cli_errors():
        from .process import Options, serve

        code = serve(Options(**options))
    raise SystemExit(code)
