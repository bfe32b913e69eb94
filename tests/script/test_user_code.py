"""Lines of a user's script in errors: behind frames of libraries, and in the text of another process's traceback."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dbelief
from dbelief.errors import DataError, UserError, WriteFailed
from dbelief.script.sampler import LeasedBatchSampler
from dbelief.script.user_code import calling_line, failing_line, is_users, located, one_line
from tests.script.test_sampler import Leases

SCRIPT = "/data/job/train.py"
DBELIEF = Path(dbelief.__file__).parent


def run(text: str, file: str = SCRIPT, **names: Any) -> dict[str, Any]:
    """Run a script's text as if it were that file; its names afterwards."""
    exec(compile(text, file, "exec"), names)
    return names


def error_of(text: str, **names: Any) -> Exception:
    try:
        run(text, **names)
    except Exception as error:
        return error
    raise AssertionError("it raises")


@pytest.mark.parametrize(
    ("file", "users"),
    [
        (SCRIPT, True),
        (__file__, True),
        (json.__file__, False),
        (np.__file__, False),
        (str(DBELIEF / "torch" / "sync.py"), False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_whose_a_file_is(file: str, users: bool) -> None:
    assert is_users(file) is users


@pytest.mark.parametrize("name", ["dbelief_train.py", "dbelief-jobs/train.py"])
def test_a_file_beside_dbelief_is_the_users(name: str) -> None:
    """As with `pip install -e`, and a script in the same folder."""
    assert is_users(str(DBELIEF.parent / name))


# -- the line that calls -------------------------------------------------------------------------------------


def test_calling_line_is_the_innermost_of_the_user() -> None:
    text = "def helper():\n    return calling_line()\n\nfound = helper()\n"
    assert run(text, calling_line=calling_line)["found"] == f"{SCRIPT}:2"


def test_calling_line_is_found_behind_library_frames() -> None:
    """The calls between are of the standard library, of text that was compiled, and of dbelief."""
    own = str(DBELIEF / "script" / "own.py")
    names = {
        "through": run("def through(call):\n    return json.loads('{}', object_hook=call)\n", "<string>", json=json),
        "inside": run("def inside(call):\n    return call()\n", own),
    }
    names = {name: held[name] for name, held in names.items()} | {"calling_line": calling_line}
    text = "\n\nfound = through(lambda _: inside(calling_line))\n"
    assert run(text, SCRIPT, **names)["found"] == f"{SCRIPT}:3"
    assert run(text, own, **names)["found"].startswith(f"{__file__}:")


def test_without_a_users_frame_there_is_no_line() -> None:
    """A thread that only libraries have started."""
    found = list[str]()
    names = {"calling_line": calling_line, "found": found}
    target = run("def target():\n    found.append(calling_line())\n", "<string>", **names)["target"]
    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    assert found == [""]


# -- the line that fails -------------------------------------------------------------------------------------


def test_failing_line_is_the_users_behind_library_frames() -> None:
    error = error_of("import json\n\ndef read(text):\n    return json.loads(text)\n\nread('{')\n")
    assert failing_line(error) == f"{SCRIPT}:4"
    assert one_line(error) == (
        f"{SCRIPT}:4: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


def test_failing_line_is_in_a_hook_of_the_user_that_a_library_called() -> None:
    text = "import json\n\ndef hook(found):\n    raise KeyError('x')\n\njson.loads('{}', object_hook=hook)\n"
    assert failing_line(error_of(text)) == f"{SCRIPT}:4"


def test_error_without_frames_has_no_line() -> None:
    assert failing_line(ValueError("x")) == ""
    assert one_line(ValueError("x")) == "ValueError: x"
    assert one_line(ValueError()) == "ValueError"


def test_lines_of_a_message_become_one() -> None:
    error = error_of("raise ValueError('first\\n  second\\tthird\\n')")
    assert one_line(error) == f"{SCRIPT}:1: ValueError: first second third"
    assert one_line(error_of("raise ValueError")) == f"{SCRIPT}:1: ValueError"


# -- errors of a data loader's processes ---------------------------------------------------------------------

LOADER = json.__file__  # of some library


def of_a_loader(ending: str, kind: type[Exception] = ValueError) -> Exception:
    """As a data loader raises it again in the script's process: the traceback is the message."""
    message = f"""Caught {kind.__name__} in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{LOADER}", line 351, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "{LOADER}", line 52, in <listcomp>
    data = [self.dataset[idx] for idx in possibly_batched_index]
  File "/data/job/data.py", line 12, in __getitem__
    return self.decode(path)
  File "/data/job/formats.py", line 7, in decode
    raise ValueError("bad")
  File "{LOADER}", line 9, in inner
    pass
{ending}
"""
    return error_of("\n\n\nraise error\n", error=kind(message))


def test_line_of_a_loaders_process_comes_before_the_scripts() -> None:
    error = of_a_loader("ValueError: bad sample 3: no picture")
    assert failing_line(error) == "/data/job/formats.py:7"
    assert one_line(error) == "/data/job/formats.py:7: ValueError: bad sample 3: no picture"


def test_class_of_a_loaders_error_is_its_own() -> None:
    """Errors whose class takes other arguments are raised again as RuntimeError."""
    error = of_a_loader("pictures.errors.BadPicture: no header", RuntimeError)
    assert one_line(error) == "/data/job/formats.py:7: pictures.errors.BadPicture: no header"


def test_loaders_traceback_without_users_lines_is_at_the_scripts() -> None:
    message = f'Caught OSError.\n  File "{LOADER}", line 351, in _worker_loop\nOSError: [Errno 5] Input/output error\n'
    error = error_of("\nraise error\n", error=OSError(message))
    assert one_line(error) == f"{SCRIPT}:2: OSError: [Errno 5] Input/output error"


def test_loaders_error_without_a_message_is_named_once() -> None:
    """As of an assertion."""
    assert one_line(of_a_loader("AssertionError", AssertionError)) == "/data/job/formats.py:7: AssertionError"


@pytest.mark.parametrize(
    "ending",
    [
        "RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.",
        "RuntimeError: CUDA error: out of memory\nhint: smaller batches",
    ],
)
def test_loaders_error_with_several_lines_keeps_its_first(ending: str) -> None:
    line = one_line(of_a_loader(ending, RuntimeError))
    assert line.startswith("/data/job/formats.py:7: RuntimeError: CUDA error: out of memory")


# -- errors of dbelief ---------------------------------------------------------------------------------------


def called(error: Exception, text: str = "\n\ncall()\n") -> Exception:
    """What a script sees of an error in a call of dbelief."""
    inside = "def call():\n    with located(), located():\n        raise error\n"
    return error_of(text, call=run(inside, str(DBELIEF / "script" / "own.py"), located=located, error=error)["call"])


def test_users_error_begins_with_the_scripts_line() -> None:
    error = called(DataError("no such file"))
    assert type(error) is DataError
    assert str(error) == f"{SCRIPT}:3: no such file"
    assert error.__suppress_context__, "one message is shown"


def test_line_that_a_message_has_already_is_not_repeated() -> None:
    error = UserError(f"{SCRIPT}:3: wrong")
    assert called(error) is error


def test_changed_dataset_is_at_the_line_of_the_loop() -> None:
    data = [1, 2, 3]
    batches = iter(LeasedBatchSampler(data, 1, 3, 0, Leases((0, 0, 3))))
    data.pop()
    error = error_of("\n\n\nfor batch in batches:\n    pass\n", batches=batches)
    assert isinstance(error, DataError)
    assert str(error).startswith(f"{SCRIPT}:4: the dataset has 2 samples")


@pytest.mark.parametrize("error", [WriteFailed("the disk is full"), ValueError("own")], ids=str)
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert called(error) is error
