"""`dbelief train` in the surroundings that offices, clusters, containers and shells have: a line for each.

    python -m benchmarks.startup.surroundings [--only NAME ...] [--set NAME=VALUE ...]

Trains examples/digits.yaml, as `make run` does, in a new folder for each surrounding, and prints the exit code, the
seconds, what remained in the temporary folder, and the last line of standard error. The exit code is 1 where one is not
as wanted. Some need root (another user, mounts), and are skipped without.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import checkout, options, report

DEAD = "http://127.0.0.1:9"
"""A proxy that refuses connections."""
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
ANOTHER = 65534
# The interpreter may lie below a home that this user cannot enter: it may read all files, and write its own only.
AS_ANOTHER = (
    f"setpriv --reuid={ANOTHER} --regid={ANOTHER} --clear-groups "
    "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
)
OWN_MOUNTS = "unshare --mount --propagation private"
SHADOWS = ("numpy.py", "yaml.py", "grpc.py", "random.py", "dbelief/__init__.py", "worker.py", "test.py")
SHADOW = "raise SystemExit(f'{__name__} of the working folder')\n"
LONGEST_S = 120.0


@dataclass(frozen=True)
class Surrounding:
    """What is around one run.

    Attributes
    ----------
    name
        Its name.
    environment
        Variables; None: not set. `{folder}` in them, and in what follows, is the run's folder.
    shell
        What a shell does before it becomes the command.
    prefix
        Command in front of the shell.
    files
        Files beside the job file, by name.
    below
        The working folder, below the run's folder.
    owner
        User of the run's folder; None: this one.
    code, line
        What is wanted: the exit code, and a pattern in the last line.
    arguments
        Further arguments of `dbelief train`.
    """

    name: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    shell: str = ":"
    prefix: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    owner: int | None = None
    code: int = 0
    line: str = "test accuracy"
    arguments: Sequence[str] = ()

    @property
    def needs_root(self) -> bool:
        """Whether only root can make it."""
        return bool(self.prefix)


def proxies() -> list[Surrounding]:
    """A proxy that is dead, by each variable, and by all."""
    names = [name for pair in ((own, own.upper()) for own in PROXIES) for name in pair]
    return [
        *(Surrounding(name, {name: DEAD}) for name in names),
        Surrounding("every proxy", dict.fromkeys(names, DEAD)),
    ]


def folders() -> list[Surrounding]:
    """Temporary folders, working folders, and paths."""
    long, deep = "t" * 150, "/".join(["d" * 200] * 12)
    return [
        Surrounding("TMPDIR of 150 bytes", {"TMPDIR": f"{{folder}}/{long}"}, "mkdir -p $TMPDIR"),
        Surrounding("TMPDIR that is missing", {"TMPDIR": "/proc/self/nowhere"}),
        Surrounding("TMPDIR, relative", {"TMPDIR": "beside"}, "mkdir -p beside"),
        Surrounding("TMPDIR with blanks", {"TMPDIR": "{folder}/a b  c"}, 'mkdir -p "$TMPDIR"'),
        Surrounding("TMPDIR that is read-only", {"TMPDIR": "/proc/self"}),
        Surrounding("blanks and umlauts", below="Ein Ordner für Übungen – 50 %, \u4f8b/a'b\"c"),
        Surrounding("ISO 8859-1 in a path", below=os.fsdecode(b"\xdcbung"), code=2, line="is not UTF-8: rename"),
        Surrounding("path of 2,400 bytes", below=deep),
        Surrounding("umask 077", shell="umask 077"),
        Surrounding("shadowing files", files=dict.fromkeys(SHADOWS, SHADOW)),
        Surrounding("matplotlibrc and numba's", files={
            "matplotlibrc": "backend: TkAgg\n", ".numba_config.yaml": "disable_jit: 0\n",
        }),
        Surrounding("working folder is read-only", shell="cd /proc/self", arguments=["--set", "output={folder}/runs"]),
        Surrounding("results cannot be written", shell="cd /proc/self", code=2, line=r"^Error: .*/runs.*: "),
    ]  # fmt: skip


def users() -> list[Surrounding]:
    """Homes, and another user without one."""
    none = {"HOME": None, "USER": None, "LOGNAME": None, "MPLCONFIGDIR": None, "NUMBA_CACHE_DIR": None}
    away = ["--set", "output={folder}/runs"]
    return [
        Surrounding("HOME is not set", none),
        Surrounding("HOME is missing", {**none, "HOME": "/proc/self/nowhere"}),
        Surrounding("HOME is read-only", {**none, "HOME": "/proc/self"}),
        Surrounding("another user, no HOME", none, prefix=AS_ANOTHER, owner=ANOTHER),
        Surrounding("the same, in /", none, "cd /", AS_ANOTHER, owner=ANOTHER, arguments=away),
        Surrounding("the same, HOME of root", {**none, "HOME": "/root"}, prefix=AS_ANOTHER, owner=ANOTHER),
        Surrounding("the same, cannot write", none, "cd /", AS_ANOTHER, owner=ANOTHER, code=2, line="^Error: .*runs"),
    ]


def limits() -> list[Surrounding]:
    """Limits of the system, and what is not mounted."""
    shm = f"{OWN_MOUNTS} sh -c 'mount -t tmpfs -o %s none /dev/shm && exec \"$@\"' sh"
    hosts = f"{OWN_MOUNTS} sh -c 'echo ::1 localhost >$0/hosts && mount --bind $0/hosts /etc/hosts && exec \"$@\"'"
    return [
        Surrounding("64 descriptors", shell="ulimit -n 64"),
        Surrounding("32 descriptors", shell="ulimit -n 32", code=1, line="ulimit -n"),
        Surrounding("4 GB of address space", shell="ulimit -v 4000000"),
        Surrounding("1 GB of address space", shell="ulimit -v 1000000"),
        Surrounding("no core files, small stack", shell="ulimit -c 0; ulimit -s 1024"),
        Surrounding("20 processes", {"HOME": "{folder}"}, "ulimit -u 20", AS_ANOTHER, owner=ANOTHER,
                    code=2, line="ulimit -u"),
        Surrounding("no /dev/shm", prefix=f"{OWN_MOUNTS} sh -c 'mount -t tmpfs -o ro none /dev/shm && exec \"$@\"' sh"),
        Surrounding("/dev/shm of 64 kB", prefix=shm % "size=64k"),
        Surrounding("localhost is ::1 alone", prefix=f"{hosts} {{folder}}"),
        Surrounding("no /tmp", {"TMPDIR": None},
                    prefix=f"{OWN_MOUNTS} sh -c 'mount -t tmpfs -o ro none /tmp && exec \"$@\"' sh"),
    ]  # fmt: skip


def shells() -> list[Surrounding]:
    """Variables, locales, terminals and signals."""
    no_locale = {name: None for name in os.environ if name.startswith("LC_")}
    return [
        Surrounding("no variable but PATH", {name: None for name in os.environ if name != "PATH"}),
        Surrounding("LANG=C", {**no_locale, "LANG": "C"},
                    below="Übung"),
        Surrounding("a locale that is missing", {**no_locale, "LC_ALL": "xx_YY.ISO-8859-1"}),
        Surrounding("PYTHONOPTIMIZE=2", {"PYTHONOPTIMIZE": "2"}),
        Surrounding("PYTHONWARNINGS=error", {"PYTHONWARNINGS": "error"}),
        Surrounding("PYTHONDEVMODE=1", {"PYTHONDEVMODE": "1"}),
        Surrounding("PYTHONPATH of nothing", {"PYTHONPATH": "/proc/self/nowhere:"}),
        Surrounding("PYTHONIOENCODING=ascii", {"PYTHONIOENCODING": "ascii"}, below="Übung"),
        Surrounding("OMP_NUM_THREADS=1", {"OMP_NUM_THREADS": "1"}),
        Surrounding("OMP_NUM_THREADS of a list", {"OMP_NUM_THREADS": "4,2"}),
        Surrounding("MPLBACKEND=TkAgg", {"MPLBACKEND": "TkAgg", "DISPLAY": None}),
        Surrounding("MPLBACKEND of a notebook", {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}),
        Surrounding("NUMBA_DISABLE_JIT=1", {"NUMBA_DISABLE_JIT": "1"}),
        Surrounding("caches are read-only", {"NUMBA_CACHE_DIR": "/proc/self", "MPLCONFIGDIR": "/proc/self",
                                             "XDG_CACHE_HOME": "/proc/self", "XDG_STATE_HOME": "/proc/self"}),
        Surrounding("GRPC_VERBOSITY=debug", {"GRPC_VERBOSITY": "debug"}),
        Surrounding("COLUMNS=5", {"COLUMNS": "5", "LINES": "1"}),
        Surrounding("COLUMNS=0, TERM=dumb", {"COLUMNS": "0", "TERM": "dumb", "NO_COLOR": "1"}),
        Surrounding("TZ is wrong", {"TZ": "Nowhere/Land"}),
        Surrounding("SIGCHLD is ignored", shell="trap '' CHLD"),
        Surrounding("SIGINT, SIGHUP are ignored", shell="trap '' INT HUP"),
        Surrounding("SIGPIPE is ignored", shell="trap '' PIPE"),
        Surrounding("standard input is closed", shell="exec <&-"),
    ]  # fmt: skip


def run(one: Surrounding, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train in it, and print its line; its figures, and whether it is as wanted."""
    work = folder / one.below
    (folder / "tmp").mkdir(parents=True)
    work.mkdir(parents=True, exist_ok=True)
    (work / "digits.yaml").write_bytes((checkout.ROOT / "examples" / "digits.yaml").read_bytes())
    for name, text in one.files.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    for name, value in one.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value.replace("{folder}", str(folder))
    command = [str(Path(sys.executable).with_name("dbelief")), "train", str(work / "digits.yaml"), "--quiet"]
    command += [part for text in overrides for part in ("--set", text)]
    command += [text.replace("{folder}", str(folder)) for text in one.arguments]
    prefix = shlex.split(one.prefix.replace("{folder}", str(folder)))
    if one.owner is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, one.owner, one.owner)
    began = time.monotonic()
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            [*prefix, "bash", "-c", f'{one.shell}; exec "$@"', "bash", *command],
            cwd=work, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            code = -process.wait()
    seconds = time.monotonic() - began
    lines = (folder / "log").read_text(errors="replace").splitlines() or [""]
    # The secret of a user whose home cannot hold it stays: all of the user's processes share it.
    left = sorted({path.name for path in (folder / "tmp").iterdir()} - {f"dbelief-{one.owner or os.geteuid()}"})
    right = code == one.code and re.search(one.line, lines[-1]) is not None and not left
    mark, rest = "" if right else "WRONG ", f"left {', '.join(left)}; " if left else ""
    row = {"name": one.name, "exit": code, "s": round(seconds, 1)}
    report.progress({**row, "line": f"{mark}{rest}{lines[-1][:200]}"})
    return {**row, "right": right}


def by_kind(kind: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of a kind of surroundings; seconds of those in which the job trains."""
    seconds = [row["s"] for row in rows if row["exit"] == 0]
    return {
        "kind": kind,
        "surroundings": len(rows),
        "right": sum(row["right"] for row in rows),
        "trained": len(seconds),
        "refused": len(rows) - len(seconds),
        "median_s": statistics.median(seconds) if seconds else None,
        "most_s": max(seconds, default=None),
    }


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    kinds = {
        "none": [Surrounding("none")],
        "proxies": proxies(),
        "folders and paths": folders(),
        "users and homes": users(),
        "limits and mounts": limits(),
        "variables, locales, signals": shells(),
    }
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="around-", dir="/var/tmp") as scratch:
        os.chmod(scratch, 0o755)
        for number, (kind, one) in enumerate((kind, one) for kind, every in kinds.items() for one in every):
            if arguments.only and not any(part in one.name for part in arguments.only):
                continue
            if one.needs_root and os.geteuid() != 0:
                report.progress({"name": one.name, "skipped": "needs root"})
            else:
                rows.setdefault(kind, []).append(run(one, Path(scratch) / str(number), arguments.overrides))
    wrong = [row["name"] for mine in rows.values() for row in mine if not row["right"]]
    report.print_figures({"kinds": [by_kind(kind, mine) for kind, mine in rows.items()], "wrong": wrong})
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
