"""Failures of a store in one line: what of them passes, what does not, and what they are called."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from dbelief.errors import StorageError, Unavailable

_SAID = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "access denied",
    "AllAccessDisabled": "access denied",
    "InvalidAccessKeyId": "access denied: the access key is not known there",
    "SignatureDoesNotMatch": "access denied: the secret key does not match",
    "ExpiredToken": "access denied: the session token has expired",
    "RequestTimeTooSkewed": "access denied: the clock of this machine is wrong",
    "403": "access denied",
    "NoCredentialsError": "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
    "PartialCredentialsError": "incomplete credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together",
    "ProfileNotFound": "no credentials: there is no such profile",
    "QuotaExceeded": "the store is full",
    "InsufficientStorage": "the store is full",
    "XMinioStorageFull": "the store is full",
    "507": "the store is full",
    "SlowDown": "it is busy, and asks for fewer requests",
    "503": "it is busy, and asks for fewer requests",
    "ServiceUnavailable": "it is busy, and asks for fewer requests",
    "InternalError": "an error inside the store",
    "500": "an error inside the store",
    "OperationAborted": "another request for this object is in progress",
    "ConditionalRequestConflict": "another request for this object is in progress",
}
"""Names of errors, and codes of answers, in words."""
_UNREACHED = {
    "ProxyConnectionError": "cannot connect through the proxy that the environment names, to",
    "ConnectTimeoutError": "timeout: no connection to",
    "EndpointConnectionError": "cannot connect to",
    "ClientConnectorError": "cannot connect to",
    "ConnectionRefusedError": "cannot connect to",
    "gaierror": "cannot connect to",
    "ConnectionResetError": "the connection was closed by",
    "ConnectionClosedError": "the connection was closed by",
    "ReadTimeoutError": "timeout: no answer from",
    "FSTimeoutError": "timeout: no answer from",
    "RequestTimeout": "timeout: no answer from",
    "TimeoutError": "timeout: no answer from",
}
"""The like for errors of the way to the store, the most exact first, before its address."""
_WHY = {"gaierror": "unknown host", "ClientConnectorDNSError": "unknown host", "ConnectionRefusedError": "refused"}
_PASSING = frozenset(
    {"SlowDown", "503", "ServiceUnavailable", "InternalError", "500", "502", "504", "OperationAborted"}
    | {"ConditionalRequestConflict", "RequestTimeout", "EndpointConnectionError", "ClientConnectorError"}
    | {"ConnectTimeoutError", "ConnectionClosedError", "ReadTimeoutError", "FSTimeoutError", "HTTPClientError"}
    | {"ResponseParserError", "IncompleteRead", "IncompleteReadError", "ClientPayloadError", "ResponseStreamingError"}
    | {"ConnectionError", "ServerDisconnectedError", "ClientOSError", "ProxyConnectionError", "gaierror"}
)
_PASSING_NUMBERS = frozenset({errno.EBUSY, errno.EAGAIN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT})


class ObjectChanged(StorageError):
    """An object is not the one that was listed: it was written again."""


def named(error: BaseException, what: str, address: str = "") -> Unavailable | StorageError:
    """The error for one of a library's: its cause in one line, with no text of the library.

    Parameters
    ----------
    what
        URL, or bucket, that the message names.
    address
        Where requests go, which the message names where there was no answer; "": not known.

    Returns
    -------
    Unavailable
        It may pass: the same request is made again, up to a deadline.
    StorageError
        It does not.
    """
    names = list(_names(error))
    if isinstance(error, ObjectChanged) or "InvalidRange" in names:  # it has become shorter
        return ObjectChanged(f"{what}: was written again while it was read")
    if isinstance(error, Unavailable | StorageError):
        return error
    said = next((_SAID[name] for name in names if name in _SAID), "") or _unreached(names, address)
    said = said or _of_system(error, names)
    if "the store is full" not in said and (_passes(error) or not _PASSING.isdisjoint(names)):
        return Unavailable(f"{what}: {said}")
    return StorageError(f"{what}: {said}")


def is_missing(error: BaseException) -> bool:
    """Whether an error says that there is no such object, in a bucket that there is."""
    return isinstance(error, FileNotFoundError) and "NoSuchBucket" not in _names(error)


def is_taken(error: BaseException) -> bool:
    """Whether an error says that an object of that name exists, where one was to be created."""
    return isinstance(error, FileExistsError) or not {"PreconditionFailed", "412"}.isdisjoint(_names(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and its causes down to the first."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _codes(error: BaseException) -> Iterator[str]:
    """The codes of a store's answer."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            yield str(response.get("Error", {}).get("Code", ""))
            yield str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def _names(error: BaseException) -> Iterator[str]:
    """The names of an error and its causes, and the codes of a store's answer."""
    yield from _codes(error)
    yield from (type(one).__name__ for one in _chain(error))


def _passes(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_NUMBERS


def _unreached(names: list[str], address: str) -> str:
    """What is wrong with the way to the store; "" where it is something else."""
    said = next((words for name, words in _UNREACHED.items() if name in names), "")
    why = next((f" ({words})" for name, words in _WHY.items() if name in names), "")
    return f"{said} {address}{why}" if address and said else said.rpartition(" ")[0].removesuffix(",")


def _of_system(error: BaseException, names: list[str]) -> str:
    if isinstance(error, PermissionError):
        return "access denied"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the store is full"
    code = next((name for name in _codes(error) if re.fullmatch(r"[A-Za-z]{1,48}", name)), "")
    if not code and isinstance(error, OSError) and error.errno:
        code = errno.errorcode.get(error.errno, "")
    return f"failed ({code or names[0]})"
