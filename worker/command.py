"""`dbelief worker`: one model replica of a job."""

from __future__ import annotations

import logging
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import click

from dbelief.cli.role_options import coordinator_option, direct_option, member_options, role_options, sharing_option
from dbelief.errors import UNFINISHED, UserError
from dbelief.process.cpu_affinity import format_cores, parse_cores, pin
from dbelief.process.log import clear_context
from dbelief.process.terminal.console import cli_errors
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.script.settings import ScriptSettings

from .script import run_script

log = logging.getLogger(__name__)

NOT_FOR_SCRIPTS = {
    "ranks": "its module is not partitioned",
    "comm": "its module is not partitioned",
    "listen": "no other worker calls it",
    "advertise": "no other worker calls it",
    "metrics_listen": "it serves no metrics; those of the coordinator have the samples of all scripts",
    "at_end": "it joins one job, and ends when its own code does",
    "record": "its loop is not replayed",
}
"""Options without an effect on a script, by the names of their values, and the reasons."""


def _cores(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else parse_cores(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _script_settings(context: click.Context, threads: int | None) -> ScriptSettings:
    """Settings of the script, from the options of its worker.

    Parameters
    ----------
    threads
        Those of `--threads`, or of `--cores`.

    Raises
    ------
    UserError
        An option that the script would ignore has another value than its default; names it.
    """
    given = context.params
    for option in context.command.params:
        name = str(option.name)
        if name in NOT_FOR_SCRIPTS and given[name] != option.get_default(context):
            raise UserError(f"{option.opts[0]} does not go with a script: {NOT_FOR_SCRIPTS[name]}")
    folder = given["folder"] and given["folder"].absolute()  # the script may leave this one
    member = given["coordinator"], given["name"], given["number"], threads
    return ScriptSettings(*member, given["shared_memory"], given["direct_streams"], given["patience"], folder)


@click.command("worker")
@coordinator_option
@click.option(
    "--ranks",
    type=click.IntRange(1),
    default=None,
    help="Ranks of this replica; default, and needed: as the job's grid.",
)
@click.option(
    "--comm",
    type=click.Choice(["threads", "mpi"]),
    default="threads",
    show_default=True,
    help="What ranks are: threads of this process, or the processes of mpiexec.",
)
@click.option(
    "--threads", type=click.IntRange(1), default=None, help="BLAS threads of this replica; default: as the job says."
)
@click.option(
    "--cores",
    metavar="LIST",
    default=None,
    callback=_cores,
    help="Cores that this replica keeps to, as 0-3,8, with a BLAS thread for each; default: any core.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the job's relative paths start on this machine; default: as on the coordinator's.",
)
@click.option(
    "--listen",
    default=None,
    metavar="HOST:PORT",
    help="Where others of a group reach this worker; default: any free port, on the address towards the coordinator.",
)
@click.option(
    "--advertise",
    default=None,
    metavar="HOST:PORT",
    help="Address to advertise to other workers; port 0: the port that is listened on. Default: --listen.",
)
@sharing_option
@direct_option
@role_options("worker", "wait for the next one at the same address, however long")
@member_options("replica", "for a replay")
@click.option(
    "--compute-wait",
    "compute_wait_s",
    type=click.FloatRange(0),
    default=0.0,
    hidden=True,
    envvar="DBELIEF_COMPUTE_WAIT",
    help="For comparisons and tests: seconds that computing each mini-batch or portion takes longer.",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT [ARGUMENT]...]")
def command(
    coordinator: str,
    comm: str,
    script: tuple[str, ...],
    cores: tuple[int, ...] | None,
    metrics_listen: str | None,
    folder: Path | None,
    patience: float,
    at_end: str,
    **options: Any,
) -> None:
    """Train one replica of a job's model: fetch parameters, compute gradients on leased data, push them.

    With a SCRIPT this process becomes the script, which joins the job by dbelief.join().
    """
    if not script:
        prepare_process()
    with cli_errors():
        waits = at_end == "wait"
        if waits and comm == "mpi":
            raise UserError("--at-end wait goes with --comm threads: mpiexec waits for no next job")
        if cores is not None:
            pin(cores)
            options["threads"] = options["threads"] or len(cores)
            log.info(f"on core{'s' * (len(cores) > 1)} {format_cores(cores)} only")
        if script:
            run_script(script, _script_settings(click.get_current_context(), options["threads"]))
        from dbelief.telemetry.metrics import Metrics
        from dbelief.training.session import JobContext

        from .process import Options, processes, run, wait

        with closing(Metrics("worker")) as metrics, processes() if comm == "mpi" else nullcontext() as ranks:
            if ranks is None or ranks.rank == 0:
                metrics.serve(metrics_listen)
            again = not waits or wait(coordinator)
            while again:
                if ranks is None or ranks.rank == 0:
                    log.info(
                        f"joining the job at {coordinator}, for up to {patience:g} s; then waiting until it trains"
                    )
                ended = run(JobContext.fetch(coordinator, patience, folder), Options(**options), metrics, ranks)
                metrics.settle()  # and release the ended session
                clear_context()
                again = waits and ended and wait(coordinator, another=True)
    raise SystemExit(UNFINISHED if waits else 0)
