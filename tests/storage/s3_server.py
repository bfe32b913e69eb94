"""An S3 server of moto on loopback, for tests with s3fs; and what of it is missing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

from dbelief.storage.object_store import disconnect

MISSING = ", ".join(name for name in ("s3fs", "moto", "flask") if find_spec(name) is None)
WHY = f"needs {MISSING}: pip install '.[s3,storage-tests]'"
OTHER = "DBELIEF_TEST_S3"
"""Variable with the URL of another implementation's server, for `test_whole_jobs.py`: its store must be empty."""
LOGIN = {"AWS_ACCESS_KEY_ID": "AKIAQUIETLY", "AWS_SECRET_ACCESS_KEY": "never/to/be/shown"}


class S3Server:
    """A server that can be taken away: its objects are in this process's memory, and outlast it.

    Attributes
    ----------
    url, port
        Its address, the same each time.
    """

    def __init__(self) -> None:
        self._server: Any = None
        self.url, self.port = "", 0
        self.start()

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()
        host, self.port = self._server.get_host_and_port()
        self.url = f"http://{host}:{self.port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = None


class OtherServer(S3Server):
    """A server that runs already, at the URL in `OTHER`, which takes the login of the tests."""

    def start(self) -> None:
        self.url = os.environ[OTHER]

    def stop(self) -> None:
        """Leave it running."""


@contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[S3Server]:
    """A server with an empty bucket, which this process's environment names, and child processes inherit."""
    server = OtherServer() if os.environ.get(OTHER) else S3Server()
    named = {**LOGIN, "AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    try:
        with mock.patch.dict(os.environ, named):
            disconnect()  # from an earlier server
            make_bucket(bucket)
            yield server
            disconnect()
    finally:
        server.stop()


def make_bucket(bucket: str) -> None:
    """Make a bucket on the server that the environment names."""
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket=bucket)
    client.close()
