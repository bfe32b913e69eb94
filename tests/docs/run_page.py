"""Runs the blocks of a page in their order, in one folder that looks like the repository's root after `make run`."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .blocks import RUN_LANGUAGES, Block, matches

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("examples",)
"""Folders that a reader changes, or that blocks write to."""
LINKED = ("Makefile", "pyproject.toml", "benchmarks", "deploy", "docs", "dbelief", "protos", "tests", "README.md")
INSTALLED = (".venv/ready-to-run", ".venv/ready-to-develop", "pyproject.toml")
"""Files that `make` takes as up to date: the test installs nothing."""
BLOCK_S = 300.0
LONG_BLOCK_S = 900.0
"""Of each block, which takes minutes where others keep the cores busy."""
SHOWN = 4_000
"""Characters of what a block printed, in a message."""
_FOREIGN = re.compile(r"PYTHON|MAKE|MFLAGS$|ARGS$")
"""Variables that the blocks do not get: of a `make` around these tests, and those that change how Python runs."""
_PORT = re.compile(r"dbelief coordinator|:\d{4,5}\b")


class BlockFailed(Exception):
    """A block ended otherwise than its page says; the message names page and line."""


@dataclass
class Folder:
    """Temporary folder of a page, and the processes that its blocks left in the background.

    Attributes
    ----------
    path : Path
    seconds : float
        That a block may take.
    pictures : bool
        Whether jobs draw their pictures, which takes a second of processor time each.
    on_host : callable
        The prefix of a command on the host of this number, "" for this one.
    """

    path: Path
    seconds: float = BLOCK_S
    pictures: bool = True
    on_host: Callable[[str], list[str]] = lambda number: []
    _groups: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        """Put in what a reader has in the repository's root."""
        for name in COPIED:
            shutil.copytree(ROOT / name, self.path / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        for name in LINKED:
            (self.path / name).symlink_to(ROOT / name)
        (self.path / ".venv").symlink_to(sys.prefix)
        (ROOT / ".cache").mkdir(exist_ok=True)
        (self.path / ".cache").symlink_to(ROOT / ".cache")
        make = self.path / ".harness" / "make"
        make.parent.mkdir()
        old = " ".join(f"-o {name}" for name in INSTALLED)
        make.write_text(f'#!/bin/sh\nexec {shutil.which("make")} {old} "$@"\n')
        make.chmod(0o755)

    def run(self, blocks: Sequence[Block]) -> list[Block]:
        """Run blocks and write files, in order; at the end, stop what was left in the background. Returns what was run.

        Raises
        ------
        BlockFailed
            At the first block whose exit code or output is another.
        """
        done: list[Block] = []
        with _ports(blocks):
            try:
                for block in blocks:
                    if block.kind == "file":
                        file = self.path / block.argument
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text(block.code)
                        done.append(block)
                    elif block.needs and not _has(block.needs):
                        print(f"{block.place}: left out, for this machine has no {block.needs}")
                    else:
                        self._run(block)
                        done.append(block)
            finally:
                self._stop()
        return done

    def _run(self, block: Block) -> None:
        # A file and not a pipe: processes in the background keep it open after the block.
        log = self.path / ".harness" / f"{block.line}.txt"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*self.on_host(block.argument), *_command(block)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.path,
                env=self._environment(),
                start_new_session=True,
            )
        self._groups.append(process.pid)
        try:
            code = process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            raise BlockFailed(f"{block.place}: longer than {self.seconds:g} s{_shown(log)}") from None
        if code != block.exit_code:
            raise BlockFailed(f"{block.place}: exit code {code}, not {block.exit_code}{_shown(log)}")
        if block.output and not matches(block.output, log.read_text(errors="replace")):
            raise BlockFailed(
                f"{block.output.place}: another output of the block at line {block.line}\n"
                f"--- expected\n{block.output.code}{_shown(log)}"
            )

    def _environment(self) -> dict[str, str]:
        bin_folders = [str(self.path / ".harness"), str(Path(sys.prefix) / "bin"), os.environ["PATH"]]
        kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
        return {
            **kept,
            "PATH": os.pathsep.join(bin_folders),
            "COLUMNS": "100",
            "DBELIEF_PICTURES": str(int(self.pictures)),
            "MPLCONFIGDIR": str(ROOT / ".cache" / "matplotlib"),
            "NUMBA_CACHE_DIR": str(ROOT / ".cache" / "numba"),
        }

    def _stop(self) -> None:
        """End the process groups of all blocks: with time to end cleanly, then without."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until_s = time.monotonic() + 20
            left = [group for group in self._groups if _signal_group(group, number)]
            while left and time.monotonic() < until_s:
                time.sleep(0.05)
                left = [group for group in left if _signal_group(group, 0)]
            if not left:
                return


@contextmanager
def _ports(blocks: Sequence[Block]) -> Iterator[None]:
    """Wait until no other page's blocks listen on ports that pages name, such as 7070."""
    if not any(_PORT.search(block.code) for block in blocks if block.kind != "host"):
        yield
        return
    lock = os.open("/tmp", os.O_RDONLY)  # which all test processes of the machine have, and which leaves no file
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _command(block: Block) -> list[str]:
    if RUN_LANGUAGES[block.language] == "sh":
        return ["bash", "-e", "-c", block.code, "bash"]
    # Empty lines first, so that the lines of a traceback are the page's.
    return [str(Path(sys.prefix) / "bin" / "python"), "-c", "\n" * block.line + block.code]


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; whether there is still one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _shown(log: Path) -> str:
    text = log.read_text(errors="replace")
    return f"\n--- printed\n{text[-SHOWN:]}"


def _has(name: str) -> bool:
    """Whether this machine has a program, or this Python a module, of this name."""
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None
