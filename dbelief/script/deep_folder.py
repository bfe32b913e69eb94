"""A temporary folder in which the processes of a data loader cannot name their sockets: the loader waits for ever."""

from __future__ import annotations

import logging
import os
import tempfile

from dbelief.security.private_folder import LONGEST_SOCKET_PATH

log = logging.getLogger(__name__)

_NAME = "/pymp-12345678/listener-12345678"
"""What the library `multiprocessing` adds to the folder, in length."""


def warn_of_deep_folder() -> None:
    """Log where a data loader with processes of its own would wait for ever."""
    folder = tempfile.gettempdir()
    most = LONGEST_SOCKET_PATH - len(_NAME)
    if len(os.fsencode(folder)) > most:
        log.warning(
            f"TMPDIR has more than {most} bytes ({folder}): a data loader with processes (num_workers) cannot pass "
            "tensors there, and waits for ever; set TMPDIR to a shorter folder"
        )
