"""The `dbelief` command before a subcommand has taken over."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dbelief.cli.main import main


def test_the_report_of_no_run_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output == f"Error: {tmp_path}: is no run folder: it holds no job.yaml\n"


def test_early_ctrl_c_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **named: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dbelief.launch.train.run_job", interrupted)
    done = CliRunner().invoke(main, ["train", "job.yaml"])
    assert done.exit_code == 130
    assert done.output == "Error: stopped by Ctrl-C\n"
