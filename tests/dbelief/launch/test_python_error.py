"""The error at the end of a Python program's log, with the place in the user's file, and whether it lasts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dbelief.launch.python_error import error_in

LASTING = {
    "import a_module_that_is_missing": "FILE:2: ModuleNotFoundError: No module named 'a_module_that_is_missing'",
    "def f(:\n    pass": "FILE:2: SyntaxError: invalid syntax",
    "if True:\npass": "FILE:3: IndentationError: expected an indented block after 'if' statement on line 2",
    "open('nowhere.csv')": "FILE:2: FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv'",
    "nothing": "FILE:2: NameError: name 'nothing' is not defined",
    "import json\njson.loads('{')": (
        "FILE:3: json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)"
    ),
    "from dbelief.errors import DataError\nraise DataError('a.csv: is empty')": (
        "FILE:3: dbelief.errors.DataError: a.csv: is empty"
    ),
    "try:\n    nothing\nexcept NameError as error:\n    raise ValueError('no data\\nat all') from error": (
        "FILE:5: ValueError: no data"
    ),
    "raise KeyError": "FILE:2: KeyError",
}
PASSING = {
    "raise ConnectionRefusedError('nobody listens')": "FILE:2: ConnectionRefusedError: nobody listens",
    "raise MemoryError": "FILE:2: MemoryError",
    "raise OSError(28, 'No space left on device')": "FILE:2: OSError: [Errno 28] No space left on device",
    "from dbelief.errors import Unavailable\nraise Unavailable('gone')": ("FILE:3: dbelief.errors.Unavailable: gone"),
    "raise RuntimeError('CUDA error: out of memory')": "FILE:2: RuntimeError: CUDA error: out of memory",
    "class Own(Exception):\n    pass\nraise Own('mine')": "FILE:4: Own: mine",
}


@pytest.mark.parametrize(("text", "line"), [*LASTING.items(), *PASSING.items()])
def test_an_error_is_one_line_with_the_users_place(text: str, line: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"# a script\n{text}\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    found, lasts = error_in(["epoch 1: loss 0.5", *ended.stderr.splitlines()])
    assert found.replace("__main__.", "") == line.replace("FILE", str(script))  # not all Pythons name that module
    assert lasts == (text in LASTING and "JSONDecodeError" not in line)


@pytest.mark.parametrize("lines", [[], ["it ends"], ['  File "a.py", line 3, in f'], ["Killed"]])
def test_a_log_without_a_traceback_has_none(lines: list[str]) -> None:
    assert error_in(lines) == ("", False)
