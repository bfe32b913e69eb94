"""The `dbelief` command before a subcommand has taken over."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dbelief.cli.main import main


def test_the_report_of_no_run_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output == f"Error: {tmp_path}: is no run folder: it holds no job.yaml\n"


def test_early_ctrl_c_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dbelief.launch.train.run_job", interrupted)
    done = CliRunner().invoke(main, ["train", "job.yaml"])
    assert done.exit_code == 130
    assert done.output == "Error: stopped by Ctrl-C\n"


def helps(command: click.Command, name: str = "dbelief") -> Iterator[tuple[str, str]]:
    """Help of a command and of those below it, 80 columns wide; those of the programs are found by entry point."""
    yield name, command.get_help(click.Context(command, info_name=name, terminal_width=80))
    for below, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{name} {below}")


def test_every_help_is_whole_at_80_columns() -> None:
    found = dict(helps(main))
    assert {"dbelief", "dbelief train", "dbelief job check"} <= found.keys()
    for name, text in found.items():
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80, name
        assert not [line for line in lines if line.endswith("...") and "Usage" not in line], name
