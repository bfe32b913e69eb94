"""The command `dbelief coordinator JOB`: runs one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dbelief.cli.role_options import role_options
from dbelief.process.terminal.completion import job_files
from dbelief.process.terminal.console import cli_errors, interrupt_event
from dbelief.process.terminal.overrides import set_option
from dbelief.rpc.grpc_settings import limit_threads, prepare_process


def _registry(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Reject a password on the command line, where every user of this machine can read it."""
    from dbelief.registry import has_password

    written = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    if written and has_password(url):
        raise click.BadParameter(
            "a password on a command line is for all to see: leave it to --credentials, or give the URL as "
            "DBELIEF_REGISTRY"
        )
    return url


@click.command("coordinator")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@set_option(envvar="DBELIEF_SET", show_envvar=True)
@click.option(
    "--listen",
    default="127.0.0.1:7070",
    show_default=True,
    envvar="DBELIEF_LISTEN",
    show_envvar=True,
    help="Address to listen on; port 0: any free.",
)
@click.option(
    "--registry",
    "registry_url",
    default="memory:",
    show_default=True,
    envvar="DBELIEF_REGISTRY",
    show_envvar=True,
    callback=_registry,
    help="redis://, rediss:// or unix:// URL, where the job's state survives; memory: keeps it in this process. Its "
    "password belongs into the credentials, or into the environment.",
)
@click.option(
    "--name",
    default=None,
    help="Name of this coordinator, the same at each start: a restarted one need not wait for its own earlier lease.",
)
@role_options("coordinator", "report the outcome until a signal ends the process")
@click.option(
    "--page",
    "page_listen",
    default=None,
    metavar="HOST:PORT",
    help="Address of a web page with the job's progress; port 0: any free.",
)
@click.option("--resume", is_flag=True, help="Resume from the newest valid snapshot set of the run folder.")
@click.option("--fresh", is_flag=True, help="Begin anew though the registry knows an unfinished run of this job.")
@click.option(
    "--once",
    is_flag=True,
    help="Where the registry holds a finished run of this job, print its outcome and exit with code 0.",
)
@click.option(
    "--run-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    default=None,
    help="An existing run folder to use.",
)
@click.option(
    "--pictures/--no-pictures",
    default=True,
    show_default=True,
    envvar="DBELIEF_PICTURES",
    show_envvar=True,
    help="When the job is over, draw its pictures into the run folder; `dbelief report` draws them at any time.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    default=None,
    help="File for the address, written once the process listens.",
)
@click.option(
    "--patience", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to wait for the registry."
)
@click.option(
    "--on-signal",
    type=click.Choice(["stop", "leave"]),
    default="stop",
    show_default=True,
    help="SIGTERM, SIGHUP and Ctrl-C stop the job, or leave it unchanged for the next coordinator.",
)
def command(**options: Any) -> None:
    """Run the job that JOB describes: wait for its shards and replicas, train, evaluate, export, end.

    Where the registry has an unfinished run of it, resume that; while another coordinator leads it, stand by. Exit code
    3: the model is trained and written, and its last evaluation failed; --resume repeats that.
    """
    prepare_process()
    limit_threads(1)
    with cli_errors(), interrupt_event() as interrupted:
        from .process import Options, run

        code = run(Options(**options), interrupted)
    raise SystemExit(code)
