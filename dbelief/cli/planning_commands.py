"""Commands that answer before a job starts: what it needs, and how it would do on machines that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dbelief.process.terminal.completion import job_files
from dbelief.process.terminal.console import cli_errors
from dbelief.process.terminal.overrides import parse_overrides, set_option


def _quantity(name: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Callback that parses an option by a function of `quantities`; an option that is not given is None."""

    def parse(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        from dbelief.job.document import quantities

        try:
            return None if text is None else getattr(quantities, name)(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return parse


POSITIVE = click.FloatRange(0, min_open=True)


@click.command("plan")
@click.argument("what", type=click.Path(path_type=Path), metavar="JOB|RUN|NETWORK", shell_complete=job_files)
@set_option()
@click.option("--replicas", type=click.IntRange(1), help="Number of replicas; default: the job's, for a network 32.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Samples of each replica's mini-batch; default: the job's, for a network 32.",
)
@click.option(
    "--memory",
    "memory_gib",
    type=POSITIVE,
    metavar="GIB",
    help="Memory of each rank; with tables, of the machine of each shard.",
)
@click.option(
    "--rows",
    callback=_quantity("counts"),
    metavar="TABLE=N,...",
    help="Rows of tables, such as user=10M,item=1M; default: as many as the job allows.",
)
@click.option(
    "--keys",
    callback=_quantity("counts"),
    metavar="TABLE=N,...",
    help="Distinct keys of tables in a replica's mini-batch, such as user=4k,item=20k.",
)
@click.option(
    "--parameters",
    callback=_quantity("count"),
    help="Number of parameters of a script's or a Python model, such as 25M; default: those of the RUN.",
)
@click.option(
    "--step",
    "step_s",
    callback=_quantity("step_seconds"),
    help="Time that a replica computes a mini-batch, such as 0.2s; default: as measured in the RUN.",
)
@click.option(
    "--latency",
    default="0.1ms",
    show_default=True,
    callback=_quantity("seconds"),
    help="Time of a message from one machine to another: seconds, or a time such as 5ms.",
)
@click.option(
    "--bandwidth",
    "--link",
    "bandwidth",
    default="1Gbit",
    show_default=True,
    callback=_quantity("bytes_per_s"),
    help="Bandwidth of each link, in each direction: bytes a second, or a rate such as 200Mbit.",
)
@click.option("--flops", type=POSITIVE, help="Operations per second of a replica, to estimate its computing time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def plan_command(
    what: Path,
    overrides: tuple[str, ...],
    latency: float,
    bandwidth: float,
    flops: float | None,
    step_s: float | None,
    **more: Any,
) -> None:
    """Report what a job or a zoo network needs: parameters, memory, traffic, and what its links leave for computing.

    Nothing is built. Of a RUN the job is planned, with the parameters and the time of a mini-batch that it measured.
    """
    from dbelief.cli.plan import plan_job
    from dbelief.plan import Speeds

    with cli_errors():
        plan_job(what, parse_overrides(overrides), speeds=Speeds(latency, bandwidth, flops, step_s), **more)


@click.command("zoo")
@click.argument("name", required=False, metavar="[NETWORK]")
def zoo_command(name: str | None) -> None:
    """List the networks of the model zoo, or print one as a job file's model section."""
    from dbelief.cli.plan import print_zoo

    with cli_errors():
        print_zoo(name)


@click.command("simulate")
@click.argument("jobs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="JOB|RUN...")
@click.option(
    "--machines",
    "fleet_file",
    type=click.Path(path_type=Path),
    metavar="FLEET",
    help="Fleet file: groups of machines with workers, shards, links, failures and prices.",
)
@set_option()
@click.option(
    "--for",
    "seconds",
    default="1h",
    show_default=True,
    callback=_quantity("step_seconds"),
    help="Time that is simulated, such as 10min or 1h; less where the job ends before.",
)
@click.option(
    "--after",
    "warm_s",
    default="0s",
    show_default=True,
    callback=_quantity("seconds"),
    help="Time from which on is counted.",
)
@click.option("--parameters", callback=_quantity("count"), help="Number of parameters of a script's or a Python model.")
@click.option(
    "--samples", callback=_quantity("count"), help="Samples of the training set; default: those of the job's data."
)
@click.option(
    "--costs",
    "costs_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What calls and bytes cost: read, or with --calibrate written; default: as measured on the results pages.",
)
@click.option(
    "--kill",
    "kills",
    multiple=True,
    metavar="ROLE@TIME",
    help="A failure of a worker's machine, a shard, or the coordinator at this time, such as shard@10min.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of all random numbers.")
@click.option(
    "--delays",
    "delays_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the order of fetches and pushes, which --set delays=FILE of dbelief train replays.",
)
@click.option("--pushes", type=click.IntRange(1), default=100_000, show_default=True, help="Of them, at most.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--calibrate", is_flag=True, help="Fit costs to the runs of these folders, which have ended.")
@click.option(
    "--check",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="With --calibrate: another run, whose error is printed.",
)
def simulate_command(
    jobs: tuple[Path, ...],
    fleet_file: Path | None,
    overrides: tuple[str, ...],
    calibrate: bool,
    others: tuple[Path, ...],
    costs_file: Path | None,
    **more: Any,
) -> None:
    """Simulate a job on machines that are not there: samples/s, staleness, losses, what saturates, and money.

    Times are simulated, from measured costs; nothing is trained.
    """
    from dbelief.cli.simulate import calibrate_costs, simulate_job
    from dbelief.errors import UserError

    with cli_errors():
        if calibrate:
            calibrate_costs(jobs, others, fleet_file, costs_file)
            return
        if len(jobs) != 1 or others:
            raise UserError("one JOB is simulated; several RUNs, and --check, are for --calibrate")
        if fleet_file is None:
            raise UserError("--machines FLEET names the machines that are simulated")
        simulate_job(jobs[0], parse_overrides(overrides), fleet_file, costs_file=costs_file, **more)


COMMANDS = (plan_command, zoo_command, simulate_command)
