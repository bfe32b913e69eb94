"""`dbelief kubernetes`: the objects of a job, to look at, to keep, or for kubectl."""

from __future__ import annotations

from pathlib import Path

import click

from dbelief.process.terminal.completion import job_files
from dbelief.process.terminal.console import cli_errors
from dbelief.process.terminal.overrides import parse_overrides, set_option


@click.group("kubernetes")
def kubernetes_group() -> None:
    """Objects of a job on Kubernetes."""


@kubernetes_group.command("render")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=job_files)
@set_option()
@click.option("--resume", is_flag=True, help="The coordinator resumes from the newest valid snapshot set.")
@click.option(
    "--prefix",
    metavar="TEXT",
    help="Begins all names; default: the job's name and a hyphen. '': one job in a namespace.",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT [ARGUMENT]...]")
def render_command(
    job_file: Path, overrides: tuple[str, ...], resume: bool, prefix: str | None, script: tuple[str, ...]
) -> None:
    """Print a job's objects as YAML.

    Plain ones, a JobSet or a TrainJob, as the job's `kubernetes` section says. Secrets with credentials are not among
    them: dbelief certs makes their files.
    """
    with cli_errors():
        from dbelief.job import load_job
        from dbelief.launch.kubernetes.description import describe
        from dbelief.launch.kubernetes.render import render, written

        described = describe(load_job(job_file, parse_overrides(overrides)), prefix, script, resume)
        print(written(render(described)), end="")


@kubernetes_group.command("access")
@click.option("--namespace", metavar="NAME", help="Namespace of the role; default: kubectl's.")
def access_command(namespace: str | None) -> None:
    """Print the Role that `--on kubernetes` needs.

    It has no verb more; kubectl create rolebinding gives it to someone.
    """
    from dbelief.job.document.yaml_document import to_yaml
    from dbelief.launch.kubernetes.access import access

    print(to_yaml(access(namespace)), end="")
