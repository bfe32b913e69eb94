"""The runner of a page: order, files, and failures that name page and line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from .blocks import extract
from .run_page import BlockFailed, Folder


def run(path: Path, text: str, seconds: float = 60.0) -> None:
    Folder(path, seconds).run(extract("page.md", text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".harness").mkdir()
    return tmp_path


def test_blocks_share_a_folder_and_run_in_order(folder: Path) -> None:
    text = """\
<!-- file: own/job.yaml -->
```yaml
name: own
```
<!-- test -->
```sh
cat own/job.yaml > copy.txt
```
<!-- test -->
```python
print(open("copy.txt").read().upper(), end="")
```
<!-- output -->
```text
NAME: OWN
```
<!-- test: exit 3 -->
```sh
exit 3
```
"""
    run(folder, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- test -->\n```sh\necho a\nfalse\necho b\n```", "page.md:2: exit code 1, not 0\n--- printed\na\n"),
        ("<!-- test: exit 2 -->\n```sh\ntrue\n```", "page.md:2: exit code 0, not 2\n--- printed\n"),
        (
            "<!-- test -->\n```sh\necho a\n```\n\n<!-- output -->\n```text\nb\n```",
            "page.md:7: another output of the block at line 2\n--- expected\nb\n\n--- printed\na\n",
        ),
    ],
)
def test_a_block_that_ends_otherwise_names_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(BlockFailed) as error:
        run(folder, text)
    assert str(error.value) == message


def test_a_traceback_names_the_line_of_the_page(folder: Path) -> None:
    with pytest.raises(BlockFailed, match=r'page.md:4: exit code 1(.|\n)*File "<string>", line 6'):
        run(folder, "# Title\n\n<!-- test -->\n```python\na = 1\nraise ValueError(a)\n```\n")


def test_a_block_whose_program_is_missing_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "<!-- test: long, needs no-such-program -->\n```sh\nfalse\n```")
    assert capsys.readouterr().out == "page.md:2: left out, for this machine has no no-such-program\n"
    with pytest.raises(BlockFailed, match="exit code 1"):
        run(folder, "<!-- test: long, needs bash -->\n```sh\nfalse\n```")


def test_a_block_ends_after_its_time(folder: Path) -> None:
    with pytest.raises(BlockFailed, match=r"page.md:2: longer than 0.2 s"):
        run(folder, "<!-- test -->\n```sh\nsleep 600\n```", seconds=0.2)


def test_processes_in_the_background_run_until_the_end_of_the_page(folder: Path) -> None:
    text = """\
<!-- test -->
```sh
sleep 600 &
echo $! > pid
```
<!-- test -->
```sh
kill -0 $(cat pid)
```
"""
    run(folder, text)
    left = int((folder / "pid").read_text())
    until_s = time.monotonic() + 60
    while _runs(left) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not _runs(left)


def test_make_runs_the_recipes_of_this_tree_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAKELEVEL", "1"), ("MAKEFLAGS", "w -- ARGS=-x"), ("ARGS", "-x")):  # as within `make test`
        monkeypatch.setenv(name, value)
    folder = Folder(tmp_path)
    folder.prepare()
    assert os.readlink(tmp_path / ".venv")
    folder.run(
        extract(
            "page.md",
            "<!-- test -->\n```sh\nmake -n run ARGS=--quiet\n```\n<!-- output -->\n```text\n"
            ".venv/bin/dbelief train examples/digits.yaml --quiet\n```\n",
        )
    )


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
