"""What a store is made of: S3 by s3fs, a folder of this machine, or the memory of this process.

A backend makes one request at a time, without retries; `ObjectStore` adds these, deadlines, and errors in one line.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dbelief.errors import UserError, WriteFailed
from dbelief.process.atomic_file import write_whole
from dbelief.storage.failures import ObjectChanged
from dbelief.url import Url

CONNECT_S, ANSWER_S, LONGEST_S = 3.0, 20.0, 120.0
"""Longest time until a connection, between two pieces of an answer, and of a request in all, in seconds."""


class Stat(NamedTuple):
    """What a store lists of an object.

    Attributes
    ----------
    size
        In bytes.
    tag
        Another one when the object is written again: the ETag in S3; for a file its time, in ns.
    """

    size: int
    tag: str


class Multipart(Protocol):
    """An object that is sent in parts, which may travel side by side. Nothing of it is visible until it is complete."""

    def send(self, number: int, part: BytesIO) -> None:
        """Send a part; numbers begin with 1, and all parts but the last are of one size."""

    def complete(self) -> None:
        """Make the object of the parts, in the order of their numbers."""

    def abort(self) -> None:
        """Remove the parts."""


class StoreBackend(Protocol):
    """Requests on objects by URL; a failure raises an error of the library.

    Attributes
    ----------
    address
        Where requests go, for messages; "": there is no such place.
    """

    @property
    def address(self) -> str:
        """See above."""
        ...

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        """The bytes of an object, or those from `start` to `stop`.

        Raises
        ------
        FileNotFoundError
            There is none.
        ObjectChanged
            It has another tag than `tag`, where one is given.
        """
        ...

    def stat(self, url: Url) -> Stat:
        """What the store lists of an object; raises FileNotFoundError where there is none."""
        ...

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        """Write an object; `create`: raises FileExistsError where it exists."""

    def begin(self, url: Url) -> Multipart:
        """Begin an object of many parts."""
        ...

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        """All objects below a prefix."""
        ...

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        """Delete objects; one that does not exist is no error.

        Where the store has folders, those below the prefix `below` that become empty are removed too.
        """


class _Collected:
    """Parts that are kept in memory until all are there."""

    def __init__(self, backend: StoreBackend, url: Url) -> None:
        self._backend, self._url = backend, url
        self._parts: dict[int, bytes] = {}

    def send(self, number: int, part: BytesIO) -> None:
        self._parts[number] = part.getvalue()

    def complete(self) -> None:
        self._backend.write(self._url, BytesIO(b"".join(self._parts[n] for n in sorted(self._parts))), create=False)

    def abort(self) -> None:
        self._parts.clear()


class MemoryBackend:
    """fsspec's memory, which all code of one process shares."""

    address = ""

    def __init__(self) -> None:
        import fsspec

        self._files = fsspec.filesystem("memory")
        self._lock = threading.Lock()

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        """See `StoreBackend`."""
        content = bytes(self._files.cat_file(url))
        if tag and tag != _checksum(content):
            raise ObjectChanged
        return content[start:stop]

    def stat(self, url: Url) -> Stat:
        """See `StoreBackend`."""
        content = bytes(self._files.cat_file(url))
        return Stat(len(content), _checksum(content))

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        """See `StoreBackend`."""
        with self._lock:
            self._files.pipe_file(url, content.getvalue(), mode="create" if create else "overwrite")

    def begin(self, url: Url) -> Multipart:
        """See `StoreBackend`."""
        return _Collected(self, url)

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        """See `StoreBackend`."""
        return {url: self.stat(url) for url in (Url(f"memory:/{path}") for path in self._files.find(prefix))}

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        """See `StoreBackend`."""
        for url in urls:
            if self._files.exists(url):
                self._files.rm_file(url)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FolderBackend:
    """A folder of this machine, for a store of one machine."""

    address = ""

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        """See `StoreBackend`."""
        with open(_path(url), "rb") as file:
            if tag and tag != str(os.fstat(file.fileno()).st_mtime_ns):
                raise ObjectChanged
            file.seek(start or 0)
            return file.read() if stop is None else file.read(stop - (start or 0))

    def stat(self, url: Url) -> Stat:
        """See `StoreBackend`."""
        path = _path(url)
        if not path.is_file():
            raise FileNotFoundError(url)
        found = path.stat()
        return Stat(found.st_size, str(found.st_mtime_ns))

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        """See `StoreBackend`."""
        path = _path(url)
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._write(path, content, create)
            except FileNotFoundError:  # its folder, which was empty, was removed meanwhile
                continue

    @staticmethod
    def _write(path: Path, content: BytesIO, create: bool) -> None:
        whole = path.with_name(f".{path.name}.{os.urandom(8).hex()}") if create else path
        try:
            write_whole(whole, content.getvalue())
            if create:
                os.link(whole, path)  # atomic, and refused where the name is taken
        except WriteFailed as error:
            raise error.__cause__ or error from None
        finally:
            if create:
                whole.unlink(missing_ok=True)

    def begin(self, url: Url) -> Multipart:
        """See `StoreBackend`."""
        return _Collected(self, url)

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        """See `StoreBackend`."""
        found: dict[Url, Stat] = {}
        for path in _path(prefix).rglob("*"):
            if not path.name.startswith("."):
                with suppress(FileNotFoundError):  # a folder, or removed meanwhile
                    url = Url(f"file://{path}")
                    found[url] = self.stat(url)
        return found

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        """See `StoreBackend`."""
        for url in urls:
            _path(url).unlink(missing_ok=True)
            folder = url.parent
            with suppress(OSError):  # one that is not empty, or that another process removed
                while below is not None and folder.is_below(below):
                    _path(folder).rmdir()
                    folder = folder.parent


def _path(url: Url) -> Path:
    return Path(url.removeprefix("file://"))


class _Upload:
    """S3's own parts."""

    def __init__(self, call: Callable[..., Any], bucket: str, key: str) -> None:
        self._call, self._to = call, {"Bucket": bucket, "Key": key}
        self._id = call("create_multipart_upload", **self._to)["UploadId"]
        self._tags: dict[int, str] = {}

    def send(self, number: int, part: BytesIO) -> None:
        content = part.getvalue()
        sent = self._call("upload_part", **self._to, UploadId=self._id, PartNumber=number, Body=content)
        self._tags[number] = sent["ETag"]

    def complete(self) -> None:
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(self._tags.items())]
        self._call("complete_multipart_upload", **self._to, UploadId=self._id, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        self._call("abort_multipart_upload", **self._to, UploadId=self._id)


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    params["headers"].pop("Expect", None)


class S3Backend:
    """S3 and what speaks like it; endpoint and credentials are those of the environment, as botocore reads them.

    Raises
    ------
    UserError
        s3fs is not installed.
    """

    def __init__(self) -> None:
        try:
            import s3fs
            from fsspec.asyn import sync
        except ImportError:
            raise UserError("s3://...: needs s3fs: pip install 'dbelief[s3]'") from None
        self._sync = sync
        config = {"connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "retries": {"total_max_attempts": 1}}
        self._files = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
        self._files.retries = 1  # `ObjectStore` retries, and has a deadline

    @property
    def address(self) -> str:
        """See `StoreBackend`."""
        with suppress(Exception):  # what is wrong with the environment is the failure of the request itself
            return re.sub(r"//[^/@]*@", "//", self._files.s3.meta.endpoint_url)  # without a login
        return ""

    def read(self, url: Url, start: int | None = None, stop: int | None = None, tag: str = "") -> bytes:
        """See `StoreBackend`."""
        bucket, key, _ = self._files.split_path(url)
        asked = {"Bucket": bucket, "Key": key}
        if start is not None or stop is not None:
            asked["Range"] = f"bytes={start or 0}-{'' if stop is None else stop - 1}"
        return bytes(self._sync(self._files.loop, self._get, asked, tag, timeout=LONGEST_S))

    def _call(self, method: str, **asked: Any) -> Any:
        """Make a request."""
        # Else a request with a content waits without an end for the answer to its header (100-continue).
        self._files.s3.meta.events.register_last("before-call.s3", _send_at_once, unique_id="dbelief")
        return self._sync(self._files.loop, self._files._call_s3, method, timeout=LONGEST_S, **asked)

    async def _get(self, asked: Mapping[str, str], tag: str) -> bytes:
        """Content of an answer, whose tag is compared: some stores do not know If-Match."""
        answer = await self._files._call_s3("get_object", **asked)
        try:
            if tag and answer["ETag"] != tag:
                raise ObjectChanged
            content: bytes = await answer["Body"].read()
            return content
        finally:
            answer["Body"].close()

    def stat(self, url: Url) -> Stat:
        """See `StoreBackend`."""
        bucket, key, _ = self._files.split_path(url)
        if not key:
            raise FileNotFoundError(url)
        found = self._call("head_object", Bucket=bucket, Key=key)
        return Stat(int(found["ContentLength"]), str(found["ETag"]))

    def write(self, url: Url, content: BytesIO, create: bool) -> None:
        """See `StoreBackend`."""
        bucket, key, _ = self._files.split_path(url)
        condition = {"IfNoneMatch": "*"} if create else {}
        self._call("put_object", Bucket=bucket, Key=key, Body=content.getvalue(), **condition)

    def begin(self, url: Url) -> Multipart:
        """See `StoreBackend`."""
        bucket, key, _ = self._files.split_path(url)
        return _Upload(self._call, bucket, key)

    def list(self, prefix: Url) -> Mapping[Url, Stat]:
        """See `StoreBackend`."""
        bucket, key, _ = self._files.split_path(prefix)
        asked = {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
        found: dict[Url, Stat] = {}
        while True:
            page = self._call("list_objects_v2", **asked)
            for row in page.get("Contents", ()):
                if not row["Key"].endswith("/"):  # an empty object that consoles make to show a folder
                    found[Url(f"s3://{bucket}/{row['Key']}")] = Stat(int(row["Size"]), row["ETag"])
            if not page.get("IsTruncated"):
                return found
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, urls: Iterable[Url], below: Url | None = None) -> None:
        """See `StoreBackend`."""
        for url in urls:  # one by one: some stores refuse several in one request without a checksum
            bucket, key, _ = self._files.split_path(url)
            self._call("delete_object", Bucket=bucket, Key=key)


def open_backend(scheme: str) -> StoreBackend:
    """The backend of a URL's scheme."""
    kinds: dict[str, Callable[[], StoreBackend]] = {"s3": S3Backend, "file": FolderBackend, "memory": MemoryBackend}
    return kinds[scheme]()
