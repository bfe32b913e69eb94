"""Settings of programs before gRPC is imported."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

ENDED_BY_SIGTERM = """
import os, signal
own = os.getpid()
os.getpid = lambda: {shown}
from dbelief.rpc.grpc_settings import prepare_process
prepare_process()
os.kill(own, signal.SIGTERM)
"""


@pytest.mark.parametrize(("shown", "code"), [("own", -signal.SIGTERM), ("1", 128 + signal.SIGTERM)])
def test_sigterm_ends_a_command_even_as_process_1(shown: str, code: int) -> None:
    """The kernel keeps a signal without a handler from process 1; so there must be a handler."""
    program = ENDED_BY_SIGTERM.format(shown=shown)
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == code
