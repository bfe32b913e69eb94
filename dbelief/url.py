"""URLs of objects in a store, and of the prefixes that they are below."""

from __future__ import annotations

import re

from dbelief.errors import UserError

SCHEMES = ("s3", "file", "memory")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


class Url(str):
    """URL of an object, or of a prefix of objects: without a login, and without a slash at its end."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Url:
        """URL of what has this name below the prefix."""
        return Url(f"{self}/{name}")

    @property
    def name(self) -> str:
        """What is behind the last slash."""
        return self.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """The prefix that it lies below."""
        return Url(self.rpartition("/")[0])

    @property
    def scheme(self) -> str:
        """What is before `://`."""
        return self.partition("://")[0]

    def is_below(self, prefix: Url) -> bool:
        """Whether it lies below a prefix, without steps upwards."""
        return self.startswith(f"{prefix}/") and not {"", ".", ".."} & set(self[len(prefix) + 1 :].split("/"))


def is_url(text: object) -> bool:
    """Whether a text is a URL, not a path."""
    return _URL.fullmatch(str(text)) is not None


def parse_url(text: str) -> Url:
    """The URL that a user gives.

    Raises
    ------
    UserError
        It has another scheme than those of `SCHEMES`, no bucket, a login, which a job file would show to every reader,
        or options.
    """
    found = _URL.fullmatch(text)
    scheme, rest = found.groups() if found else ("", "")
    if scheme not in SCHEMES:
        raise UserError(f"{scheme or '(no scheme)'}://...: must be one of {', '.join(f'{one}://' for one in SCHEMES)}")
    if "@" in rest:
        raise UserError(
            f"{scheme}://...: must not contain a login: credentials come from the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, or a profile)"
        )
    path = rest.rstrip("/")
    parts = path.removeprefix("/").split("/") if scheme == "file" else path.split("/")
    if (scheme == "file") != path.startswith("/") or {"", ".", ".."} & set(parts) or re.search(r"[?#\s]", path):
        form = {"s3": "s3://BUCKET/PREFIX", "file": "file:///FOLDER", "memory": "memory://NAME"}[scheme]
        raise UserError(f"{scheme}://...: must have the form {form}, without empty parts, options or spaces")
    return Url(f"{scheme}://{path}")
