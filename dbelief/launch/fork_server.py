"""Fork server: a process that has imported the programs, and forks a new process for each request of its launcher.

    python -P -m dbelief.launch.fork_server DESCRIPTOR LAUNCHER_PID ROOM MODULE ...

DESCRIPTOR is a stream socket, connected to the launcher. ROOM is text of some length, which the new processes overwrite
with their command lines. A request is a line of JSON: `arguments` of `dbelief`, `log` (path of a file), `environment`.
The answer is one too, `pid` or `error`. The server ends when the launcher closes the socket, or ends.

The new process is a child of the launcher, not of this one: it is forked by an intermediate process that ends, and the
launcher is the subreaper of its descendants. So it outlives this process, ends with the launcher, and has its exit code
read there. gRPC is imported here, and not used: it has no threads before its first channel or server.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from importlib.metadata import entry_points
from typing import Any

from dbelief.process.quick_end import end_after
from dbelief.process.with_parent import end_with_parent


def serve(channel: socket.socket, launcher: int) -> dict[str, Any]:
    """Fork a process for each request; returns in each of these, with its request."""
    with channel, channel.makefile("rb") as requests:
        for line in requests:
            request: dict[str, Any] = json.loads(line)
            pid = _fork_for_launcher()
            if pid == 0:
                end_with_parent(launcher, signal.SIGKILL)
                return request
            answer = {"pid": pid} if pid > 0 else {"error": os.strerror(-pid)}
            channel.sendall(json.dumps(answer).encode() + b"\n")
    raise SystemExit


def _fork_for_launcher() -> int:
    """Fork a process that becomes a child of the launcher: its pid here, 0 in itself, a negative errno at an error."""
    inherited, go = os.pipe()
    read, pid = os.pipe()
    try:
        intermediate = os.fork()
    except OSError as error:
        for descriptor in (inherited, go, read, pid):
            os.close(descriptor)
        return -(error.errno or 1)
    if intermediate:
        os.close(inherited)
        os.close(pid)
        answer = int(os.read(read, 32))
        os.waitpid(intermediate, 0)  # from here on the launcher is the new process's parent
        os.close(read)
        os.close(go)
        return answer
    os.close(go)
    os.close(read)
    try:
        new = os.fork()
    except OSError as error:
        new = -(error.errno or 1)
    if new:
        os.write(pid, str(new).encode())
        os._exit(0)
    os.close(pid)
    os.read(inherited, 1)  # its end: the intermediate process has been waited for, or the server has ended
    os.close(inherited)
    return 0


def _enter(request: dict[str, Any]) -> None:
    """Make this process what an exec of `dbelief` would: session, streams, environment, command line."""
    os.setsid()
    with open(os.devnull) as nothing, open(request["log"], "ab") as log:
        for source, descriptor in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["dbelief", *request["arguments"]]
    _set_title(" ".join(sys.argv))
    gc.unfreeze()
    gc.enable()


def _set_title(title: str) -> None:
    """Set what `ps` shows for this process."""
    from setproctitle import setproctitle

    setproctitle(title)


def main() -> None:
    """Import the modules, serve, and run the program of each request."""
    descriptor, launcher, modules = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]
    channel = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would lose the exit codes of all
    os.environ["SPT_NOENV"] = "1"  # else a title overwrites what /proc/PID/environ shows
    _set_title("dbelief fork server")

    from dbelief.rpc.grpc_settings import prepare_process

    prepare_process()
    (dbelief,) = entry_points(group="console_scripts", name="dbelief")
    command = dbelief.load()
    gc.disable()  # a collection would write to pages that all processes share
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    _enter(serve(channel, launcher))
    command()


if __name__ == "__main__":
    end_after(main)
