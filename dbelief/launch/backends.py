"""Where the processes of a job run, as the user says it in one word."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dbelief.errors import UserError
from dbelief.job import Job, load_job, variables
from dbelief.launch.forked_process import ForkServer
from dbelief.launch.site import LoopbackSite, Site
from dbelief.url import Url

BACKENDS = ("local", "ssh", "ray", "slurm", "kubernetes")
"""This machine; hosts that ssh reaches; a Ray cluster; the nodes of a batch job of Slurm; pods."""


class Placed(NamedTuple):
    """The site of a job, the job's fields there, and whether it resumes."""

    site: Site
    overrides: Mapping[str, str]
    resume: bool


class Submitted(NamedTuple):
    """Options of a command whose job is submitted: its script, whether it resumes, what shows its progress."""

    script: Sequence[str] = ()
    resume: bool = False
    quiet: bool = False
    page: str | None = None


@dataclass(frozen=True)
class Where:
    """Options of a command that runs a whole job.

    Attributes
    ----------
    backend
        One of `BACKENDS`.
    hosts
        File that lists hosts; needed by "ssh", and of no other.
    remote_command
        How `dbelief` is started on a host: words, without a shell's variables.
    address
        Of this machine, as hosts reach it; None: as they see it.
    sbatch
        Options of `sbatch`, of "slurm" where this process submits the batch job.
    """

    backend: str = "local"
    hosts: Path | None = None
    remote_command: str = "dbelief"
    address: str | None = None
    sbatch: str = ""

    def place(
        self, server: ForkServer | None, job_file: Path, overrides: Mapping[str, str], resume: bool = False
    ) -> Placed:
        """Where a job runs; `server`: for processes of this machine; None: the site has one of its own.

        Raises
        ------
        UserError
            Options are missing, or are of another backend; the backend is not there; a host has no `dbelief`.
        RuntimeFailure
            A host cannot be reached; Slurm's commands fail.
        """
        self._check()
        if self.backend == "kubernetes":
            raise UserError("--on kubernetes: the coordinator is a pod: dbelief train or dbelief run follows it")
        if self.backend == "slurm":
            from dbelief.launch.slurm.launch import allocated

            self._check_delays(load_job(job_file, overrides))
            return Placed(*allocated(job_file, overrides, resume))
        if self.backend == "local":
            return Placed(LoopbackSite(server), overrides, resume)
        job = load_job(job_file, overrides)
        self._check_delays(job)
        if job.record and isinstance(job.output, Url):
            raise UserError("record: true needs a run folder that all members share, and output is an object store")
        return Placed(self._ssh(job) if self.backend == "ssh" else _ray(job), overrides, resume)

    def _check(self) -> None:
        if self.backend not in BACKENDS:
            raise UserError(f"there is no backend {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.backend != "ssh" and (self.hosts is not None or self.address is not None):
            raise UserError(f"--hosts and --address are of --on ssh, and this is --on {self.backend}")
        if self.backend != "slurm" and self.sbatch:
            raise UserError(f"--sbatch is of --on slurm, and this is --on {self.backend}")

    def _check_delays(self, job: Job) -> None:
        if job.delays is not None:
            from dbelief.simulate.replay.check import refuse_options

            refuse_options(job, {f"--on {self.backend}": True})

    @property
    def submits(self) -> bool:
        """Whether the coordinator runs elsewhere: this process submits the job, and follows it."""
        from dbelief.launch.slurm.launch import in_batch_job

        return self.backend == "kubernetes" or (self.backend == "slurm" and not in_batch_job())

    def submit(self, words: Sequence[str], job_file: Path, overrides: Mapping[str, str], options: Submitted) -> int:
        """Submit a job, and follow it to its end; its exit code.

        Parameters
        ----------
        words
            Of this process's command line, which Slurm's first node runs again.

        Raises
        ------
        UserError
            The job file is invalid, or options are of another backend.
        RuntimeFailure
            The scheduler refuses the job, or ended it.
        """
        from dbelief.launch.slurm.launch import tasks_of
        from dbelief.launch.slurm.submission import submit_and_follow

        self._check()
        job = load_job(job_file, overrides)
        self._check_delays(job)
        if self.backend == "kubernetes":
            return _on_kubernetes(job, options)
        return submit_and_follow(job.name, words, tasks_of(job), _words("--sbatch", self.sbatch))

    def _ssh(self, job: Job) -> Site:
        from dbelief.launch.ssh.hosts import read_hosts
        from dbelief.launch.ssh.site import SshSite

        if self.hosts is None:
            raise UserError("--on ssh needs --hosts FILE: a line for each host, HOST or HOST slots=N")
        program = _words("--remote-command", self.remote_command)
        if not program:
            raise UserError("--remote-command is empty; it is how dbelief is started on a host")
        shares = not isinstance(job.output, Url)
        return SshSite(read_hosts(self.hosts), program, self.address, shares, variables(job.to_yaml()))


def _ray(job: Job) -> Site:
    from dbelief.launch.ray.site import RaySite

    return RaySite(job)


def _on_kubernetes(job: Job, options: Submitted) -> int:
    from rich.console import Console

    from dbelief.launch.kubernetes.launch import run
    from dbelief.launch.kubernetes.pods import PAGE
    from dbelief.monitor.live_view import LiveView

    if options.page is not None:
        raise UserError(
            f"--page: the coordinator's pod has its page at port {PAGE}: kubectl port-forward shows it here"
        )
    with nullcontext() if options.quiet else LiveView(Console(stderr=True)) as view:
        return run(job, options.script, options.resume, view.update if view is not None else lambda status: None)


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}") from None
