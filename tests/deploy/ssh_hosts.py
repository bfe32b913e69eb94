"""Hosts for `ssh` on this machine: network namespaces, each with an `sshd` of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness.hosts import address, inside, network
from tests.dbelief.launch.processes import soon

PRIVILEGES = Path("/run/sshd")
"""Folder that sshd needs."""


def sshd() -> str | None:
    """Path of sshd: of `DBELIEF_SSHD`, or of this machine."""
    return os.environ.get("DBELIEF_SSHD") or shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def missing() -> str | None:
    """What is not here for such hosts; None: nothing is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if sshd() is None:
        return "there is no sshd, and DBELIEF_SSHD names none"
    if "sshd" not in {user.pw_name for user in pwd.getpwall()}:
        return "sshd needs its user, which Debian's openssh-server makes"
    if not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "there is no ssh"
    return None if os.environ.get("DBELIEF_HOSTNET") else "DBELIEF_HOSTNET names no program that makes hosts"


class SshHosts:
    """Hosts h2 to hN, and h1, from which they are reached.

    Attributes
    ----------
    environment
        In which `ssh` finds its keys, and reaches the hosts by their names.
    """

    def __init__(self, folder: Path, prefix: str, count: int) -> None:
        self.prefix, self.count, self._folder = prefix, count, folder
        self.names = [f"h{host}" for host in range(2, count + 1)]
        self.environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    @property
    def here(self) -> list[str]:
        """Start of a command line that runs on h1."""
        return inside(self.prefix, 1)

    def cut(self, host: int) -> None:
        """Take a host's link down."""
        subprocess.run([*inside(self.prefix, host), "ip", "link", "set", "eth0", "down"], check=True)

    def processes(self, host: int) -> list[str]:
        """Command lines of the host's processes, but for those of sshd."""
        listed = subprocess.run(["ip", "netns", "pids", f"{self.prefix}h{host}"], capture_output=True, text=True)
        found = []
        for pid in listed.stdout.split():
            try:
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return [line for line in found if line and not line.startswith(("sshd:", str(sshd())))]

    def prepare(self) -> None:
        """Write the keys and settings of `ssh` and `sshd`."""
        self._folder.mkdir()
        for name in ("host", "user"):
            file = self._folder / name
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
        (self._folder / "sshd.conf").write_text(
            f"Port 22\nHostKey {self._folder}/host\nAuthorizedKeysFile {self._folder}/user.pub\nStrictModes no\n"
            "PermitRootLogin yes\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
        )
        known = self._folder / "known"
        known.write_text("".join(f"{address(host)} {(self._folder / 'host.pub').read_text()}" for host in self._all))
        names = "".join(f"Host h{host}\n  HostName {address(host)}\n" for host in self._all)
        (self._folder / "ssh.conf").write_text(
            f"{names}Host *\n  User root\n  IdentityFile {self._folder}/user\n  UserKnownHostsFile {known}\n"
            "  IdentitiesOnly yes\n"
        )
        wrapper = self._folder / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self._folder}/ssh.conf "$@"\n')
        wrapper.chmod(0o700)

    @property
    def _all(self) -> range:
        return range(2, self.count + 1)

    def start(self, host: int) -> subprocess.Popen[bytes]:
        """Start a host's sshd."""
        command = [str(sshd()), "-D", "-f", f"{self._folder}/sshd.conf", "-E", f"{self._folder}/sshd-{host}.log"]
        return subprocess.Popen([*inside(self.prefix, host), *command])

    def answers(self, host: int) -> bool:
        """Whether `ssh` reaches a host."""
        asked = [*self.here, "ssh", "-o", "BatchMode=yes", f"h{host}", "true"]
        return subprocess.run(asked, env=self.environment, capture_output=True).returncode == 0


@contextmanager
def ssh_hosts(folder: Path, count: int, seconds: float) -> Iterator[SshHosts]:
    """So many hosts, until the context ends."""
    hosts = SshHosts(folder, f"dbs{os.getpid() % 10_000}", count)
    hosts.prepare()
    made = not PRIVILEGES.exists()
    PRIVILEGES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        if made:
            stack.callback(PRIVILEGES.rmdir)
        stack.enter_context(network(Path(os.environ["DBELIEF_HOSTNET"]), hosts.prefix, count, 1000, seconds))
        for host in range(2, count + 1):
            server = hosts.start(host)
            stack.callback(server.wait, 30)
            stack.callback(server.terminate)
        for host in range(2, count + 1):
            soon(lambda host=host: hosts.answers(host), f"h{host} does not answer")  # type: ignore[misc]
        yield hosts
