"""The `dbelief` command, also as `python -m dbelief`."""

from functools import partial
from typing import NoReturn

from dbelief.cli.main import main
from dbelief.process.quick_end import end_after


def run() -> NoReturn:
    """Run the command of this process's arguments, and end with its exit code."""
    end_after(partial(main, prog_name="dbelief"))


if __name__ == "__main__":
    run()
