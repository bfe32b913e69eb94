"""The `dbelief` command: what is for people here, one command per role from its program by entry point."""

from __future__ import annotations

import json
import os
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import click

from dbelief.console import exits_cleanly, pairs

GROUP = "dbelief.commands"


class Commands(click.Group):
    """Finds the programs' commands by entry point, and imports only the one that is asked for."""

    @staticmethod
    def _programs() -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=GROUP)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*super().list_commands(ctx), *self._programs()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command of ours, or a program's."""
        program = self._programs().get(cmd_name)
        if program is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = program.load()
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("dbelief"), prog_name="dbelief")
def main() -> None:
    """Train models on machines that are slow, mixed, far apart, or may vanish."""


@main.command("train")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Replace a field of the job file.")
@click.option("--resume", is_flag=True, help="Go on from the newest complete snapshot set of the run folder.")
@click.option("--quiet", is_flag=True, help="Show nothing while it runs.")
def train_command(job_file: Path, overrides: tuple[str, ...], resume: bool, quiet: bool) -> None:
    """Run a whole job on this machine: registry, shards, coordinator and workers as processes of their own."""
    from dbelief.run import run_job

    with exits_cleanly():
        code = run_job(job_file, pairs(overrides), resume, quiet)
    raise SystemExit(code)


@main.command("evaluate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--on", "split", type=click.Choice(["validation", "test"]), default="test", show_default=True)
def evaluate_command(run: Path, split: str) -> None:
    """Evaluate the model of a run folder on its job's data."""
    from dbelief.run import evaluate_run

    with exits_cleanly():
        print(json.dumps(evaluate_run(run, split)))


@main.group("job")
def job_group() -> None:
    """Look after job files."""


@job_group.command("check")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Replace a field of the job file.")
def check_command(job_file: Path, overrides: tuple[str, ...]) -> None:
    """Check a job file, its data and its model, without training."""
    from dbelief.run import check_job

    with exits_cleanly():
        for line in check_job(job_file, pairs(overrides)):
            print(line)


@main.group("bench")
def bench_group() -> None:
    """Measure what this machine gives."""


def _count(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Read 64M as 64,000,000; k, M and G are decimal."""
    factor = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise click.BadParameter(f"must be a whole number above 0, with k, M or G behind it or nothing, not {text!r}")
    return int(digits) * factor


@bench_group.command("apply")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@click.option("--parameters", default="64M", show_default=True, callback=_count, help="float32 numbers held.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Interleaved rounds per rule.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that share the work.")
def bench_apply(as_json: bool, parameters: int, rounds: int, threads: int) -> None:
    """Time every update rule against the memory's own speed, and against torch's fused optimisers if it is there."""
    from dbelief.bench import apply

    results = apply.measure(parameters, rounds, threads)
    if as_json:
        print(json.dumps(apply.figures(parameters, rounds, threads, results)))
    else:
        apply.show(parameters, results)


_AT_LEAST_1 = click.IntRange(1)


@bench_group.command("wire")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of tables.")
@click.option("--mib", type=_AT_LEAST_1, default=160, show_default=True, help="Size of the vector.")
@click.option("--rounds", type=_AT_LEAST_1, default=15, show_default=True, help="Interleaved rounds.")
@click.option("--workers", type=_AT_LEAST_1, default=4, show_default=True, help="Workers that push at the same time.")
@click.option("--pushes", type=_AT_LEAST_1, default=400, show_default=True, help="Pushes of these, in all.")
@click.option("--push-mib", type=_AT_LEAST_1, default=16, show_default=True, help="Size of each of these.")
@click.option("--steps", type=_AT_LEAST_1, default=300, show_default=True, help="Pulls and pushes of the small model.")
def bench_wire(as_json: bool, mib: int, rounds: int, workers: int, pushes: int, push_mib: int, steps: int) -> None:
    """Time pull and push between a worker and a shard against a bare socket, a copy and, if it is there, gloo."""
    from dbelief.rpc.settings import prepare_process

    prepare_process()
    with exits_cleanly():
        from dbelief.bench import wire
        from dbelief.errors import Interrupted

        try:
            found = wire.measure(mib, rounds, workers, pushes, push_mib, steps)
        except KeyboardInterrupt:
            raise Interrupted("stopped before it was done") from None
        if as_json:
            print(json.dumps(found))
        else:
            wire.show(found)


@bench_group.command("peer", hidden=True)
@click.argument("kind", type=click.Choice(["socket", "gloo", "pushes"]))
@click.option("--connect", required=True, metavar="HOST:PORT", help="Where the process that measures listens.")
def bench_peer(kind: str, connect: str) -> None:
    """Be the other end of something that `dbelief bench` measures."""
    from dbelief.rpc.settings import limit_threads, prepare_process

    prepare_process()
    limit_threads(1)
    with exits_cleanly():
        from dbelief.bench import peers

        peers.run(kind, connect)


if os.environ.get("DBELIEF_DEBUG"):
    import faulthandler

    faulthandler.enable()
