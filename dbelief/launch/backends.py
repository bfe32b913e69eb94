"""Where the processes of a job run, as the user says it in one word."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.launch.forked_process import ForkServer
from dbelief.launch.site import LoopbackSite, Site
from dbelief.url import Url


@dataclass(frozen=True)
class Where:
    """Options of a command that runs a whole job.

    Attributes
    ----------
    backend
        "local": this machine; "ssh": hosts; "ray": a Ray cluster.
    hosts
        File that lists hosts; needed by "ssh", and of no other.
    remote_command
        How `dbelief` is started on a host: words, without a shell's variables.
    address
        Of this machine, as hosts reach it; None: as they see it.
    """

    backend: str = "local"
    hosts: Path | None = None
    remote_command: str = "dbelief"
    address: str | None = None

    def site(self, server: ForkServer | None, job_file: Path, overrides: Mapping[str, str]) -> Site:
        """The site of a job; `server`: for processes of this machine; None: the site has one of its own.

        Raises
        ------
        UserError
            Options are missing, or are of another backend; a host has no `dbelief`.
        RuntimeFailure
            A host cannot be reached.
        """
        if self.backend != "ssh":
            if self.hosts is not None or self.address is not None:
                raise UserError(f"--hosts and --address are of --on ssh, and this is --on {self.backend}")
            return LoopbackSite(server) if self.backend == "local" else self._ray(load_job(job_file, overrides))
        from dbelief.launch.ssh.hosts import read_hosts
        from dbelief.launch.ssh.site import SshSite

        if self.hosts is None:
            raise UserError("--on ssh needs --hosts FILE: a line for each host, HOST or HOST slots=N")
        try:
            program = shlex.split(self.remote_command)
        except ValueError as error:
            raise UserError(f"--remote-command {self.remote_command!r}: {error}") from None
        if not program:
            raise UserError("--remote-command is empty; it is how dbelief is started on a host")
        job = load_job(job_file, overrides)
        _check_record(job)
        return SshSite(read_hosts(self.hosts), program, self.address, shares=not isinstance(job.output, Url))

    def _ray(self, job: Job) -> Site:
        from dbelief.launch.ray.site import RaySite

        _check_record(job)
        return RaySite(job)


def _check_record(job: Job) -> None:
    if job.record and isinstance(job.output, Url):
        raise UserError("record: true needs a run folder that all members share, and output is an object store")
