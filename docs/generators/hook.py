"""Hook of MkDocs: puts generated parts into pages, and links out of docs/ into words.

The site is read offline, beside no source tree: a link to a file of the repository outside docs/ becomes its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from docs.generators import alerts, cli, errors, events, job_file, measurements, metrics, plots, summary

ROOT = Path(__file__).parents[2]

GENERATED: Mapping[str, Callable[[], str]] = {
    "alerts": alerts.reference,
    "cli": cli.reference,
    "comparison_file": job_file.comparison_file,
    "errors": errors.reference,
    "events": events.reference,
    "job_file": job_file.job_file,
    "metrics": metrics.reference,
    "summary": summary.reference,
    **{f"command_{name}": partial(measurements.command, name) for name in ("replicas", "kills", "peers", "lenet_step")},
}
"""Generators by the name that a page writes."""

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_FILE = re.compile(r"^<!-- file: (?P<name>\S+) -->\n+(?P<fence>```\w+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """The files of the site with the pictures that `plots` draws."""
    from mkdocs.structure.files import File  # of the extra `docs`; tests of this module do without

    for name in plots.PICTURES:
        files.append(File.generated(config, f"pictures/measured-{name}.svg", content=plots.svg(name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page with its generated parts; see `with_generated` and `without_outer_links`. Sets its rank in searches."""
    page.meta.setdefault("search", {"boost": rank(page.file.src_uri)})
    markdown = with_file_names(markdown)
    return without_outer_links(with_generated(markdown), ROOT / "docs" / page.file.src_uri)


def with_file_names(markdown: str) -> str:
    """The page with the names of files, which stand in comments, as titles of their blocks."""
    return _FILE.sub(r'\g<fence> title="\g<name>"', markdown)


def rank(page: str) -> float:
    """Weight of a page in searches: tasks come first, measurements and decisions last."""
    folder = page.rpartition("/")[0]
    if folder in ("results", "decisions"):
        return 0.2
    return 4.0 if folder == "how-to" or page == "tutorial.md" else 1.0


def with_generated(markdown: str) -> str:
    """The page with each mark replaced by what its generator returns.

    Raises
    ------
    KeyError
        No generator has this name.
    """
    return MARK.sub(lambda found: GENERATED[found[1]](), markdown)


def without_outer_links(markdown: str, page: Path) -> str:
    """The page with links to files of the repository outside docs/ as plain text; a missing file's link stays."""

    def text(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        outside = target.exists() and not target.is_relative_to(ROOT / "docs")
        return found[1] if outside else found[0]

    return _LINK.sub(text, markdown)
