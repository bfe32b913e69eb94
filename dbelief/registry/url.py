"""Redaction of a registry's URL: apart from the client, so that it imports no redis."""

import re

# scheme, a login that is never shown, host and port, path, options that are never shown
_SHOWN = re.compile(r"(\w+://)(?:[^/?#@]*@)?((?:\[[0-9a-fA-F:.]*\]|[^/?#@:]*)(?::\d*)?)(/[^?#@]*)?(?:[?#][^@]*)?")


def without_password(url: str) -> str:
    """The URL for display: no login, no options; no more than its scheme where it cannot be parsed."""
    shown = _SHOWN.fullmatch(url)
    if shown:
        return "".join(part or "" for part in shown.groups())
    scheme, separator, _ = url.partition("://")
    return f"{scheme}://..." if separator else "(not a URL)"


def has_password(url: str) -> bool:
    """Whether a URL contains a login, which a process list would show."""
    return "@" in url or "password=" in url
