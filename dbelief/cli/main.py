"""The `dbelief` command: user commands are defined here, each role's command is loaded from its entry point."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import IO, Any, NoReturn

import click

from dbelief.cli import operator_commands, planning_commands, run_commands
from dbelief.cli.kubernetes import kubernetes_group
from dbelief.cli.role_options import adding, sharing_option
from dbelief.errors import Interrupted
from dbelief.launch.slurm.command import guard_command
from dbelief.process.log import configure
from dbelief.process.terminal.command_group import CommandGroup
from dbelief.process.terminal.completion import job_files
from dbelief.process.terminal.console import cli_errors, debug
from dbelief.process.terminal.overrides import parse_overrides, set_option

log = logging.getLogger(__name__)

GROUP = "dbelief.commands"


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Report an invalid command line like all errors of dbelief: in one line, without click's usage text."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        help_by = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        raise _Wrong(" ".join(error.format_message().split()) + help_by) from None


class _Wrong(click.UsageError):
    """An invalid command line, reported like all errors."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        log.error(self.format_message())


class Commands(CommandGroup):
    """Command group that finds the roles' commands by entry point, and imports only the requested one."""

    @staticmethod
    def _programs() -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=GROUP)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted({*super().list_commands(ctx), *self._programs()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command defined here, or a role's command."""
        program = self._programs().get(cmd_name)
        if program is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = program.load()
        return command

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse the arguments before the command's name."""
        with _in_one_line():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the other arguments and run the command; a Ctrl-C that it does not handle is reported in one line."""
        try:
            with _in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            log.error("stopped by Ctrl-C")
            raise SystemExit(Interrupted.exit_code) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("dbelief"), prog_name="dbelief")
@click.option("--debug", "wanted", is_flag=True, help="Show tracebacks of errors, in the logs of child processes too.")
def main(wanted: bool) -> None:
    """Train models on machines that are slow, heterogeneous, remote or unreliable."""
    debug(wanted)
    with cli_errors():
        configure()


for _command in (
    *operator_commands.COMMANDS,
    *run_commands.COMMANDS,
    *planning_commands.COMMANDS,
    guard_command,
    kubernetes_group,
):
    main.add_command(_command)


_whole_job = adding(
    (
        set_option(),
        click.option("--resume", is_flag=True, help="Resume from the newest valid snapshot set of the run folder."),
        click.option("--quiet", is_flag=True, help="Show nothing while it runs; the result is one line."),
        click.option(
            "--page", metavar="HOST:PORT", help="Address of a web page with the job's progress; port 0: any free."
        ),
        sharing_option,
        click.option(
            "--on",
            "backend",
            type=click.Choice(["local", "ssh", "ray", "slurm", "kubernetes"]),
            default="local",
            show_default=True,
            help="Where members run: this machine, hosts that ssh reaches, a Ray cluster, Slurm's nodes, or pods.",
        ),
        click.option(
            "--hosts",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="With --on ssh: a line for each host, HOST or HOST slots=N, N the members that it has room for.",
        ),
        click.option(
            "--remote-command",
            default="dbelief",
            show_default=True,
            metavar="COMMAND",
            help="With --on ssh: how dbelief is started on a host.",
        ),
        click.option("--address", help="With --on ssh: this machine's, where hosts do not all see the same."),
        click.option(
            "--sbatch",
            default="",
            metavar="OPTIONS",
            help="With --on slurm, outside of a batch job: more options of sbatch, as one word.",
        ),
    )
)
"""Options of commands that run a complete job; `_run_whole` takes them."""


def _run_whole(
    job_file: Path,
    overrides: tuple[str, ...],
    backend: str,
    hosts: Path | None,
    remote_command: str,
    address: str | None,
    sbatch: str,
    resume: bool,
    script: Sequence[str] = (),
    **options: Any,
) -> NoReturn:
    """Run a complete job, and exit with its code."""
    from dbelief.launch.forked_process import ForkServer

    with cli_errors(), ForkServer() if backend == "local" else nullcontext() as server:  # imports beside this process
        from dbelief.launch.backends import Submitted, Where
        from dbelief.launch.train import run_job
        from dbelief.tools.report.at_end import PicturesAtEnd, are_wanted

        pictures = PicturesAtEnd if are_wanted() else None
        where, fields = Where(backend, hosts, remote_command, address, sbatch), parse_overrides(overrides)
        if where.submits:
            submitted = Submitted(script, resume, options["quiet"], options["page"])
            raise SystemExit(where.submit(sys.argv[1:], job_file, fields, submitted))
        place = where.place(server, job_file, fields, resume)
        options |= {"resume": place.resume, "site": place.site, "pictures": pictures, "script": script}
        code = run_job(job_file, place.overrides, **options)
    raise SystemExit(code)


@main.command("train")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@_whole_job
def train_command(job_file: Path, overrides: tuple[str, ...], **options: Any) -> None:
    """Run a complete job: registry, shards, coordinator and workers as separate processes, on this machine or hosts.

    Exit code 3: the model is trained and written, and its last evaluation failed; --resume repeats that.
    """
    _run_whole(job_file, overrides, **options)


@main.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--job",
    "job_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="JOB",
    help="The job file, with source: script for model and data.",
    shell_complete=job_files,
)
@click.option("--workers", type=click.IntRange(1), help="Scripts at a time; default: the job's replicas.")
@_whole_job
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENT]...")
def run_command(
    job_file: Path, workers: int | None, overrides: tuple[str, ...], script: tuple[str, ...], **options: Any
) -> None:
    """Run a training script as the replicas of a job: a Python file, or any command.

    The script joins by dbelief.join(); registry, shards and coordinator are started with it. A script that fails is
    started again, up to three times, unless all fail before they have joined, by the same error of their code. Exit
    code 3: the model is trained and written, and its last evaluation failed.
    """
    _run_whole(job_file, (*overrides, f"replicas={workers}") if workers else overrides, script=script, **options)


@main.command("sweep")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@set_option(
    metavar="FIELD=VALUE,VALUE",
    help="Values of a field, a run for each; of several fields, every combination. lr is short for the rate.",
)
@click.option("--seeds", metavar="SEED,SEED", help="As --set seed=SEED,SEED.")
@click.option("--jobs", "at_once", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the runs' folders and of the table; default: runs/NAME-sweep.",
)
@click.option(
    "--by",
    metavar="METRIC",
    help="What decides which settings are the best: accuracy, loss, or one of the job's evaluate.metrics; default: its "
    "evaluate.best_by, else accuracy, else loss.",
)
def sweep_command(
    job_file: Path, overrides: tuple[str, ...], seeds: str | None, at_once: int, output: Path | None, by: str | None
) -> None:
    """Run a job for each combination of settings, and print the table; if repeated, only the missing runs."""
    from dbelief.tools.experiments.sweep import run_sweep

    with cli_errors():
        sets = parse_overrides((*overrides, *[f"seed={seeds}"] * (seeds is not None)))
        code = run_sweep(job_file, sets, at_once, output, by)
    raise SystemExit(code)


@main.command("compare")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=job_files)
@click.option("--only", multiple=True, metavar="LABEL", help="Run this strategy (and others so named) only.")
@click.option("--seeds", default="", metavar="SEED,SEED", help="Run with these of the file's seeds only.")
@click.option("--waits", default="", metavar="SECONDS,SECONDS", help="Run with these of its compute_wait_s only.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Folder; default: runs/NAME.")
def compare_command(file: Path, only: tuple[str, ...], seeds: str, waits: str, output: Path | None) -> None:
    """Run strategies on the same model, data and seeds; report time and samples to a test accuracy.

    Completed runs are not repeated. Commands with other seeds may share a folder.
    """
    from dbelief.rpc.grpc_settings import prepare_process

    prepare_process()
    from dbelief.tools.experiments.compare.comparison import compare

    with cli_errors():
        for path in compare(file, only, _listed(seeds), _listed(waits), output):
            print(path)


def _listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


@main.command("certs")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option(
    "--days",
    type=click.FloatRange(0, min_open=True),
    default=365.0,
    show_default=True,
    help="How long certificates hold.",
)
@click.option(
    "--registry-host",
    "registry_hosts",
    multiple=True,
    default=("registry", "localhost"),
    show_default=True,
    metavar="NAME",
    help="Name or address by which the coordinator calls the registry.",
)
@click.option(
    "--page-host",
    "page_hosts",
    multiple=True,
    default=("localhost",),
    show_default=True,
    metavar="NAME",
    help="Name or address by which people call the coordinator's status page.",
)
def certs_command(folder: Path, days: float, registry_hosts: tuple[str, ...], page_hosts: tuple[str, ...]) -> None:
    """Create a development certificate authority, and a folder with certificate and token for each role of a job.

    A DIR that already holds an authority is left unchanged. DIR/ca.key signs more certificates; no process needs it.
    """
    from dbelief.security.certificates import make_credentials

    with cli_errors():
        made = make_credentials(folder, days, registry_hosts, page_hosts)
        print(f"{folder}: {'certificates and tokens for a job' if made else 'has an authority already'}")


@main.group("job", cls=CommandGroup)
def job_group() -> None:
    """Check job files, and print their schema."""


@job_group.command("check")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@set_option()
def check_command(job_file: Path, overrides: tuple[str, ...]) -> None:
    """Check a job file, its data, its model and its delays, without training."""
    from dbelief.job import load_job
    from dbelief.training.job_check import check_job

    with cli_errors():
        fields = parse_overrides(overrides)
        for line in check_job(job_file, fields):
            print(line)
        if (job := load_job(job_file, fields)).delays is not None:
            from dbelief.simulate.replay.run import DelayedJob

            print(DelayedJob.of(job).description)


@job_group.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of job files, for editors."""
    from dbelief.job import schema

    print(json.dumps(schema(), indent=2))


def _topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Topics and commands that begin so, for completion."""
    from dbelief.cli.help_topics import SECTIONS, topics

    names = {*main.list_commands(ctx), *(name for section in SECTIONS for name in topics(section))}
    return sorted(name for name in names if name.startswith(incomplete))


@main.command("help")
@click.argument("topic", required=False, metavar="[TOPIC]", shell_complete=_topics)
@click.pass_context
def help_command(ctx: click.Context, topic: str | None) -> None:
    """List the topics of the documentation, or show the page of one, or the options of a command."""
    from dbelief.cli.help_topics import list_topics, show_topic

    with cli_errors():
        root = ctx.find_root()
        if topic is None:
            print(list_topics())
            return
        command = main.get_command(root, topic)
        if command is not None:
            with click.Context(command, info_name=topic, parent=root) as own:
                print(command.get_help(own))
        show_topic(topic, main.list_commands(root))
