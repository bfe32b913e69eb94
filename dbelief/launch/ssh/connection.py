"""Commands on a host, by OpenSSH's client: its configuration, keys and agent are the user's own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence

from dbelief.errors import RuntimeFailure, UserError
from dbelief.launch.guarded_program import BROKEN

CONNECT_S = 10
ALIVE_S, ALIVE_COUNT = 5, 3
"""A connection without an answer to so many questions, this many seconds apart, has broken."""
_APART = "ControlMaster=no", "ControlPath=none", "ClearAllForwardings=yes", "RemoteCommand=none", "LogLevel=ERROR"
"""Options that a user may have set for sessions at a terminal: a member has a connection of its own, and no other."""
COMMAND_S = 60.0


def ssh_client() -> str:
    """Path of `ssh`.

    Raises
    ------
    UserError
        There is none.
    """
    found = shutil.which("ssh")
    if found is None:
        raise UserError("there is no ssh on PATH: hosts are reached by OpenSSH's client")
    return found


def command_line(host: str, words: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Command line that runs words on a host; what `ssh` sends is one line for the shell of the host's user."""
    alive = f"ServerAliveInterval={ALIVE_S}", f"ServerAliveCountMax={ALIVE_COUNT}", f"ConnectTimeout={CONNECT_S}"
    always = [part for option in ("BatchMode=yes", *_APART, *alive) for part in ("-o", option)]
    return [ssh_client(), "-T", *always, *options, host, "--", shlex.join(words)]


def run(host: str, script: str, *words: str) -> str:
    """Run a shell's script with arguments on a host to its end; what it printed.

    Raises
    ------
    RuntimeFailure
        The host cannot be reached, or the script failed or took more than `COMMAND_S`; names the host.
    """
    command = command_line(host, ["sh", "-c", script, "sh", *words])
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        raise RuntimeFailure(f"host {host} did not answer within {COMMAND_S:g} s") from None
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    if ended.returncode == BROKEN:
        raise RuntimeFailure(f"host {host} cannot be reached: {said[-1] if said else 'ssh gave no reason'}")
    if ended.returncode:
        raise RuntimeFailure(f"host {host}: {said[-1] if said else f'exit code {ended.returncode}'}")
    return ended.stdout.decode(errors="replace")
