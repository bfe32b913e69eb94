"""`dbelief ps`: command that runs one parameter-server shard of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dbelief.cli.role_options import role_options, sharing_option
from dbelief.process.console import cli_errors
from dbelief.rpc.grpc_settings import limit_threads, prepare_process


@click.command("ps")
@click.option("--coordinator", required=True, metavar="HOST:PORT", help="Where the job's coordinator listens.")
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
@role_options("ps", "wait for the next one at the same address, however long")
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for the log of applied pushes.",
)
@click.option("--number", type=click.IntRange(0), default=None, help="The shard number to ask for; default: any free.")
@click.option(
    "--name", default=None, help="What this shard is called, however often it is started: its earlier life is over."
)
@click.option(
    "--patience", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait for the coordinator."
)
def command(**options: Any) -> None:
    """Run one shard of a job's parameters: store its segments, apply pushes by the job's rule."""
    prepare_process()
    limit_threads(1)
    with cli_errors():
        from .process import Options, serve

        serve(Options(**options))
