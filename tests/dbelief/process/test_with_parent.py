"""Programs that end with their parent; see also the tests of child processes, in which a launcher is killed."""

import subprocess
import sys

import pytest

from dbelief.process import with_parent

pytestmark = pytest.mark.processes


def test_a_program_whose_parent_has_ended_does_not_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", with_parent.__file__, "1", "15", "/bin/true"], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "parent ended first" in ended.stderr


def test_what_the_kernel_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="prctl: Invalid argument"):
        with_parent.prctl(-1, 0)
