"""The file that lists hosts, and which of them get members."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.launch.ssh.hosts import LOST_S, ReachableHosts, read_hosts

LISTED = """
# the office
amy@red       # by the window
blue slots=2
10.0.0.7
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "hosts.txt"
    file.write_text(text)
    return file


def test_hosts_with_their_slots(tmp_path: Path) -> None:
    assert read_hosts(written(tmp_path, LISTED)) == {"amy@red": 1, "blue": 2, "10.0.0.7": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "hosts.txt: no host; a line for each: HOST, or HOST slots=N"),
        ("# none\n", "hosts.txt: no host"),
        ("a\nb slots=0", "hosts.txt:2: 'slots=0' behind host b; what may stand there is slots=N, N from 1"),
        ("a cores=3", "hosts.txt:1: 'cores=3' behind host a"),
        ("a slots=two", "hosts.txt:1: 'slots=two' behind host a"),
        ("a\n\na slots=2", "hosts.txt:3: host a a second time; several members: slots=N"),
        ("-oProxyCommand=x", "hosts.txt:1: '-oProxyCommand=x' is no host"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError) as raised:
        read_hosts(written(tmp_path, text))
    assert str(raised.value).startswith(f"{tmp_path}/{why}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.txt: No such file"):
        read_hosts(tmp_path / "none.txt")


def test_a_host_that_was_lost_gets_members_again_later(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    hosts = ReachableHosts({"a": 1, "b": 2}, lambda: now[0])
    assert hosts.left() == ["a", "b"]
    hosts.broke("a")
    hosts.broke("a")
    assert hosts.left() == ["b"]
    assert [record.getMessage() for record in caplog.records] == ["host a is lost; it gets no member for 30 s"]
    now[0] = LOST_S
    assert hosts.left() == ["a", "b"]


def test_where_all_hosts_are_lost_each_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    hosts = ReachableHosts({"a": 1, "b": 1}, lambda: 0.0)
    hosts.broke("a")
    hosts.broke("b")
    assert hosts.left() == ["a", "b"]
