"""A program on another computer that ends with what started it: a connection, or an agent of a scheduler."""

from __future__ import annotations

import base64
import io
import signal
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .child_process import describe_exit

_GUARD = """exec 3<&0
mask=$(umask)
umask 077
own=$(mktemp -d "${TMPDIR:-/tmp}/dbelief-credentials-XXXXXXXX") || exit 1
program=
end() {
  [ -z "$program" ] || kill -s KILL -- "-$program" "$program"
  rm -rf "$own"
} 2>/dev/null
trap end EXIT
trap 'exit 1' HUP INT TERM
IFS= read -r packed <&3 || exit 1
printf %s "$packed" | base64 -d | tar -xof - -C "$own" || exit 1
umask "$mask"
cd "$1" 2>/dev/null || cd
shift
while [ "$1" != -- ]; do
  eval ": \\"\\${${1%%=*}:=\\${1#*=}}\\"; export ${1%%=*}"
  shift
done
shift
! command -v setsid >/dev/null || set -- setsid "$@"
DBELIEF_CREDENTIALS=$own "$@" </dev/null 3<&- &
program=$!
(while read -r name <&3; do kill -s "$name" "$program"; done
kill -s KILL -- "-$program" "$program"
rm -rf "$own") >/dev/null 2>&1 &
reader=$!
wait "$program"
code=$?
kill "$reader" 2>/dev/null
[ "$code" -ne 255 ] || code=1
exit "$code\""""
"""Runs a program. On its input come credentials, as a tar file in base64, which exist while it runs, and then
names of signals. Where the input ends, it is killed with all processes that it has started, also where the guard was
killed before: ssh forwards no signals, and a program would outlive its connection. It never ends with `BROKEN`."""
BROKEN = 255
"""Exit code for what is between here and the program: `ssh` has it where its connection broke."""
_SIGNAL = 128
"""A shell's exit code of a program that signal n has killed is 128 + n."""


def guarded(folder: Path, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Command line that runs words so; in a folder where that exists, else in the user's own.

    `variables`: of the environment, where the computer has none of that name itself.
    """
    given = [f"{name}={value}" for name, value in variables.items()]
    return ["sh", "-c", _GUARD, "sh", str(folder), *given, "--", *words]


def packed(folder: Path) -> bytes:
    """The files of a folder as the guard reads them: one line."""
    archived = io.BytesIO()
    with tarfile.open(fileobj=archived, mode="w") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return base64.b64encode(archived.getvalue()) + b"\n"


def ended(code: int, where: str) -> tuple[int, str]:
    """The program's exit code, negative for a signal, and a description of its end, from the guard's."""
    code = _SIGNAL - code if code - _SIGNAL in signal.valid_signals() else code
    return code, f"on {where} {describe_exit(code)}"
