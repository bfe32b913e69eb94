"""What a registry's URL shows, and what it must not: apart from the client, so that reading one imports no redis."""

import re

# scheme, a login that is never shown, host and port, path, options that are never shown
_SHOWN = re.compile(r"(\w+://)(?:[^/?#@]*@)?((?:\[[0-9a-fA-F:.]*\]|[^/?#@:]*)(?::\d*)?)(/[^?#@]*)?(?:[?#][^@]*)?")


def without_password(url: str) -> str:
    """The URL as it may be shown: no login, no options; no more than its scheme where it is unclear."""
    shown = _SHOWN.fullmatch(url)
    if shown:
        return "".join(part or "" for part in shown.groups())
    scheme, separator, _ = url.partition("://")
    return f"{scheme}://..." if separator else "(not a URL)"


def has_password(url: str) -> bool:
    """Whether a URL holds a login: one that a process list would show."""
    return "@" in url or "password=" in url
