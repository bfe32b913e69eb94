"""What a real S3 server refuses is one line, without the login."""

from __future__ import annotations

import pytest

from dbelief.errors import StorageError, Unavailable, UserError
from dbelief.storage.backends import S3Backend
from dbelief.storage.object_store import ObjectStore
from dbelief.storage.probe import probe
from dbelief.url import parse_url
from tests.storage.s3_server import MISSING, WHY

pytestmark = [pytest.mark.storage, pytest.mark.skipif(bool(MISSING), reason=WHY)]


@pytest.mark.usefixtures("server")
def test_no_such_bucket() -> None:
    store, url = ObjectStore(S3Backend()), parse_url("s3://absent/runs/a")
    with pytest.raises(StorageError, match=r"^s3://absent/runs/a: there is no such bucket$"):
        store.read(url)
    with pytest.raises(StorageError, match=r"^s3://absent/runs/a: there is no such bucket$"):
        store.replace(url, b"x")
    with pytest.raises(UserError, match=r"^s3://absent/runs: there is no such bucket$"):
        probe(ObjectStore(S3Backend()), parse_url("s3://absent/runs"))


@pytest.mark.usefixtures("server")
def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(StorageError, match=r"^s3://bucket/a: no credentials: set AWS_ACCESS_KEY_ID"):
        ObjectStore(S3Backend()).replace(parse_url("s3://bucket/a"), b"x")


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAQUIETLY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never/to/be/shown")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    away = r"cannot connect to http://127\.0\.0\.1:9 \(refused\)"
    with pytest.raises(Unavailable, match=rf"^s3://bucket/a: {away}, in \d attempts?$"):
        ObjectStore(S3Backend(), patience_s=1.0).read(parse_url("s3://bucket/a"))
