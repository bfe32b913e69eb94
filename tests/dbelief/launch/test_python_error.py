"""The error at the end of a Python program's log, with the place in the user's file, and whether it lasts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dbelief.launch.python_error import error_in

LASTING = {
    "import a_module_that_is_missing": "ModuleNotFoundError: No module named 'a_module_that_is_missing' (FILE, line 2)",
    "def f(:\n    pass": "SyntaxError: invalid syntax (FILE, line 2)",
    "if True:\npass": "IndentationError: expected an indented block after 'if' statement on line 2 (FILE, line 3)",
    "open('nowhere.csv')": "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv' (FILE, line 2)",
    "nothing": "NameError: name 'nothing' is not defined (FILE, line 2)",
    "import json\njson.loads('{')": (
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        "(FILE, line 3)"
    ),
    "from dbelief.errors import DataError\nraise DataError('a.csv: is empty')": (
        "dbelief.errors.DataError: a.csv: is empty (FILE, line 3)"
    ),
    "try:\n    nothing\nexcept NameError as error:\n    raise ValueError('no data\\nat all') from error": (
        "ValueError: no data (FILE, line 5)"
    ),
    "raise KeyError": "KeyError (FILE, line 2)",
}
PASSING = {
    "raise ConnectionRefusedError('nobody listens')": "ConnectionRefusedError: nobody listens (FILE, line 2)",
    "raise MemoryError": "MemoryError (FILE, line 2)",
    "raise OSError(28, 'No space left on device')": "OSError: [Errno 28] No space left on device (FILE, line 2)",
    "from dbelief.errors import Unavailable\nraise Unavailable('gone')": (
        "dbelief.errors.Unavailable: gone (FILE, line 3)"
    ),
    "raise RuntimeError('CUDA error: out of memory')": "RuntimeError: CUDA error: out of memory (FILE, line 2)",
    "class Own(Exception):\n    pass\nraise Own('mine')": "__main__.Own: mine (FILE, line 4)",
}


@pytest.mark.parametrize(("text", "line"), [*LASTING.items(), *PASSING.items()])
def test_an_error_is_one_line_with_the_users_place(text: str, line: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"# a script\n{text}\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    found, lasts = error_in(["epoch 1: loss 0.5", *ended.stderr.splitlines()])
    assert found == line.replace("FILE", str(script)).replace("__main__.Own", found.partition(":")[0])
    assert lasts == (text in LASTING and "JSONDecodeError" not in line)


@pytest.mark.parametrize("lines", [[], ["it ends"], ['  File "a.py", line 3, in f'], ["Killed"]])
def test_a_log_without_a_traceback_has_none(lines: list[str]) -> None:
    assert error_in(lines) == ("", False)
