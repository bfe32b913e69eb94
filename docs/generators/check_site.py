"""Check of the built site: no page, style sheet or script names a resource that a browser would fetch from a network.

python -m docs.generators.check_site .cache/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
_STYLE = re.compile(r"""(?:url\(\s*['"]?|@import\s+['"])((?:https?:)?//[^'")\s]+)""")
_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class _Page(HTMLParser):
    """Collects the addresses that a browser fetches in order to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag makes a browser fetch."""
        values = {name: value or "" for name, value in attrs}
        self.fetched += [value for name, value in values.items() if (tag, name) in _FETCHED]
        if tag == "link" and _LINKS & set(values.get("rel", "").split()):
            self.fetched.append(values.get("href", ""))
        self.fetched += _STYLE.findall(values.get("style", ""))


def fetched(site: Path) -> Iterator[tuple[Path, str]]:
    """Files of the site, each with an address outside it that a browser would fetch."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text())
            yield from ((path, address) for address in page.fetched if re.match(r"(?:\w+:)?//", address))
        elif path.suffix == ".css":
            yield from ((path, address) for address in _STYLE.findall(path.read_text()))


def main(site: Path) -> None:
    """Check a site; exit code 1 where there is none, or a page would fetch something."""
    if not any(site.rglob("*.html")):
        raise SystemExit(f"{site}: holds no pages")
    found = [f"{path}: {address}" for path, address in fetched(site)]
    if found:
        raise SystemExit("\n".join(["fetched from a network:", *found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
