"""Commands for operating a running job: its status, stop and scale, and a process's health check."""

from __future__ import annotations

import click

from dbelief.cli.role_options import adding, proxy_option
from dbelief.process.printable import printable
from dbelief.process.terminal.completion import run_folders
from dbelief.process.terminal.console import cli_errors
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.security.options import with_credentials

_WHERE = click.argument("where", default="127.0.0.1:7070", metavar="[HOST:PORT | RUN]", shell_complete=run_folders)
_calling = adding((with_credentials(), proxy_option))


@click.command("status")
@_WHERE
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@_calling
def status_command(where: str, as_json: bool) -> None:
    """Print a job's status, from a coordinator (default 127.0.0.1:7070) or a run folder."""
    prepare_process()
    from dbelief.cli.inspect_run import print_status

    with cli_errors():
        print_status(where, as_json)


@click.command("top")
@_WHERE
@_calling
def top_command(where: str) -> None:
    """Show a job's status, its curves and each member's speed, until it ends or Ctrl-C.

    If standard error is not a terminal, print a plain line periodically. Exit code 1 if the job fails.
    """
    prepare_process()
    from dbelief.cli.inspect_run import show_top

    with cli_errors():
        code = show_top(where)
    raise SystemExit(code)


@click.command("stop")
@_WHERE
@click.option("--reason", default="stopped by dbelief stop", show_default=True, help="Reason, kept in the summary.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it has ended.")
@click.option("--deadline", type=click.FloatRange(0), default=300.0, show_default=True, help="Seconds to wait at most.")
@_calling
def stop_command(where: str, reason: str, wait: bool, deadline: float) -> None:
    """Stop a job cleanly: leased work is finished, a snapshot set taken, the model written; report what was kept."""
    prepare_process()
    from dbelief.cli.job_control import stop_job

    with cli_errors():
        print(printable(stop_job(where, reason, deadline if wait else None)))


@click.command("scale")
@click.argument("what", type=click.Choice(["workers", "ps"]))
@click.argument("count", type=click.IntRange(1))
@_WHERE
@_calling
def scale_command(what: str, count: int, where: str) -> None:
    """Change a training job to COUNT workers, or to COUNT shards (ps).

    `dbelief train` starts missing workers, or lets surplus workers leave after their leases; elsewhere the request is
    rejected with the command that does it. With shards, segments migrate while training continues; `dbelief train`
    starts missing shards, elsewhere the answer names the command. Surplus shards exit once they hold no segment.
    """
    prepare_process()
    from dbelief.cli.job_control import scale_job

    with cli_errors():
        print(printable(scale_job(where, "replica" if what == "workers" else "shard", count)))


@click.command("advise")
@_WHERE
@click.option(
    "--over",
    "over_s",
    type=click.FloatRange(1),
    default=10.0,
    show_default=True,
    help="Seconds of a running job that are measured.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--apply", is_flag=True, help="Scale the running job by the best advice on workers or shards.")
@_calling
def advise_command(where: str, over_s: float, as_json: bool, apply: bool) -> None:
    """Report what bounds a job's speed, and what other workers, shards or settings would bring, as measured.

    Of a job that trains, some seconds are measured; of a run folder, the whole run. Gains are multiples of the measured
    samples/s. Settings are printed as --set options for the next start.
    """
    prepare_process()
    from time import sleep

    from dbelief.cli.advise import advise_job

    with cli_errors():
        advise_job(where, over_s, as_json, apply, sleep)


@click.command("health")
@click.argument("address", envvar="DBELIEF_LISTEN", metavar="HOST:PORT")
@click.option("--timeout", "timeout_s", default=3.0, show_default=True, help="Seconds to wait for an answer.")
@click.option(
    "--service",
    default="",
    metavar="NAME",
    help="Service to check for, as dbelief.v1.Coordinator, which a standby does not serve; default: any.",
)
@_calling
def health_command(address: str, timeout_s: float, service: str) -> None:
    """Check whether the coordinator or shard at HOST:PORT (or $DBELIEF_LISTEN) serves: exit code 0 if so, else 1."""
    prepare_process()
    from dbelief.rpc.server.health import check_serving

    with cli_errors():
        check_serving(address, timeout_s, service)


COMMANDS = (status_command, top_command, stop_command, scale_command, advise_command, health_command)
