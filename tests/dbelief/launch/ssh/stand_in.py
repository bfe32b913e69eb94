"""A stand-in for OpenSSH's client: runs commands on this machine, as `ssh` and `sshd` do on another."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import os, pathlib, subprocess, sys, threading

here = pathlib.Path({folder!r})
at = sys.argv.index("--")
host, command = sys.argv[at - 1], sys.argv[at + 1]
with open(here / "asked", "a") as asked:
    asked.write(host + " " + " ".join(command.split()) + chr(10))
if (here / ("lost-" + host)).exists():
    sys.exit(print("ssh: connect to host " + host + " port 22: No route to host", file=sys.stderr) or 255)
ends = here / ("ends-" + host)
os.environ["SSH_CONNECTION"] = ends.read_text() if ends.exists() else "127.0.0.1 50000 127.0.0.1 22"
program = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True)


def relay():
    try:
        while data := os.read(0, 4096):
            program.stdin.write(data)
            program.stdin.flush()
        program.stdin.close()
    except OSError:
        pass


threading.Thread(target=relay, daemon=True).start()
code = program.wait()
sys.stdout.flush()
os._exit(code if code >= 0 else 255)
"""


class StandIn:
    """The stand-in as `ssh` in a folder, for `PATH`. Its host is this machine, by any name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        file = folder / "ssh"
        file.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        file.chmod(0o700)

    def lose(self, host: str, lost: bool = True) -> None:
        """Let further connections to a host fail, or succeed again."""
        marker = self.folder / f"lost-{host}"
        marker.touch() if lost else marker.unlink()

    def ends(self, host: str, here: str, there: str) -> None:
        """Set the addresses of connections to a host."""
        (self.folder / f"ends-{host}").write_text(f"{here} 50000 {there} 22")

    @property
    def asked(self) -> list[str]:
        """Host and command line of each connection so far."""
        return (self.folder / "asked").read_text().splitlines()
