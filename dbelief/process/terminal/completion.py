"""Values of arguments that a shell completes: job files and run folders, looked up when the key is pressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbelief.errors import UserError
from dbelief.url import Url, is_url, parse_url

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def job_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """YAML files that begin so, and those of folders that begin so; otherwise what the shell completes."""
    named = [path for path in _beginning(incomplete) if path.is_file()]
    held = [path for folder in _beginning(incomplete) if folder.is_dir() for path in _entries(folder)]
    return _items((path for path in (*named, *held) if path.suffix in (".yaml", ".yml")), incomplete, "file")


def run_folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run folders that begin so, and those of folders that begin so; otherwise folders of the shell."""
    named = [path for path in _beginning(incomplete) if path.is_dir()]
    held = [path for folder in named for path in _entries(folder)]
    return _items((path for path in (*named, *held) if (path / "job.yaml").is_file()), incomplete, "dir")


class RunArgument(click.ParamType["Path | Url"]):
    """A run: the path of its folder, or its URL."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | Url:
        """The path or URL of a text."""
        try:
            return parse_url(str(value)) if is_url(value) else Path(value)
        except UserError as error:
            self.fail(str(error), param, ctx)


def _beginning(incomplete: str) -> Iterator[Path]:
    """Files and folders whose path begins so; of hidden ones, those that are asked for."""
    folder, _, name = incomplete.rpartition("/")
    inside = Path(folder or ("/" if incomplete.startswith("/") else "."))
    hidden = name.startswith(".")
    yield from (path for path in _entries(inside) if path.name.startswith(name) and path.name.startswith(".") == hidden)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # no such folder, or not readable
        return []


def _items(found: Iterator[Path], incomplete: str, otherwise: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(str(path)) for path in found] or [CompletionItem(incomplete, type=otherwise)]
