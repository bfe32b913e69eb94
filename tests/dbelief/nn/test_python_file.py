"""Threads that load one user's file, as they import a module: it is run once, and again only where its run failed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dbelief.errors import ModelError
from dbelief.nn.python_file import load_object

MEANWHILE_S = 0.05
"""Seconds in which a thread that does not wait for the file's run would return."""


@pytest.fixture
def outside() -> Iterator[Any]:
    """A module that files import, to reach this test."""
    module: Any = ModuleType("outside_the_file")
    sys.modules["outside_the_file"] = module
    with ThreadPoolExecutor(2) as pool:
        module.runs, module.pool, module.load = 0, pool, load_object
        yield module
    del sys.modules["outside_the_file"]


SECOND = """import outside_the_file as outside
from concurrent.futures import TimeoutError
from pathlib import Path

outside.runs += 1
if outside.runs == 1:
    outside.second = outside.pool.submit(outside.load, outside.path, "Model")
    try:
        outside.second.exception(outside.meanwhile_s)
    except TimeoutError:
        pass
"""


@pytest.fixture
def file(outside: Any, tmp_path: Path) -> Path:
    """A file during whose first run another thread loads it too."""
    outside.path, outside.meanwhile_s = tmp_path / "model.py", MEANWHILE_S
    return Path(outside.path)


def test_a_second_thread_waits_for_the_run_of_the_first(outside: Any, file: Path) -> None:
    file.write_text(SECOND + "class Model: pass\n")
    first, _ = load_object(file, "Model")
    assert outside.second.result(60)[0] is first
    assert outside.runs == 1


def test_a_file_whose_run_failed_is_run_again_by_the_thread_that_waited(outside: Any, file: Path) -> None:
    file.write_text(SECOND + "    raise ValueError('the first run')\nclass Model: pass\n")
    with pytest.raises(ModelError, match="line 12: importing it raised ValueError: the first run"):
        load_object(file, "Model")
    assert outside.second.result(60)[0].__name__ == "Model"
    assert outside.runs == 2


def test_files_that_load_each_other_in_two_threads_do_not_wait_for_ever(outside: Any, tmp_path: Path) -> None:
    outside.both = threading.Barrier(2)
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for own, peer in ((one, other), (other, one)):
        own.write_text(
            "import pathlib\nimport outside_the_file as outside\nclass Model: pass\noutside.both.wait(60)\n"
            f"Peer = outside.load(pathlib.Path({str(peer)!r}), 'Model')[0]\n"
        )
    models: list[Future[Any]] = [outside.pool.submit(load_object, path, "Model") for path in (one, other)]
    first, second = (model.result(60)[0] for model in models)
    assert load_object(one, "Peer")[0] is second
    assert load_object(other, "Peer")[0] is first


def test_two_files_of_the_same_bytes_are_two_modules(tmp_path: Path) -> None:
    paths = [tmp_path / "one.py", tmp_path / "other.py"]
    for path in paths:
        path.write_text("class Model: pass\n")
    first, second = (load_object(path, "Model")[0] for path in paths)
    assert first is not second
    assert load_object(paths[0], "Model")[0] is first
