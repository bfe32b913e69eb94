"""The site's navigation, and the names that its Python reference documents."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import dbelief

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "python_api.md"
SECTIONS = ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Results", "Decisions"]


def _config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return config


def _pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(below)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(_pages(_config()["nav"])) == pages


def test_sections_are_in_the_order_of_the_folders() -> None:
    named = [next(iter(entry)) for entry in _config()["nav"] if isinstance(entry, dict)]
    assert named == [name for name in SECTIONS if name in named]


def test_the_site_loads_no_fonts_and_is_offline() -> None:
    config = _config()
    assert config["theme"]["font"] is False
    assert {"search", "offline"} <= set(filter(None, (name for name in config["plugins"] if isinstance(name, str))))


def _documented() -> list[str]:
    return re.findall(r"^::: ([\w.]+)$", API.read_text(), re.MULTILINE)


def test_every_documented_name_has_a_docstring_and_so_have_its_methods() -> None:
    for name in _documented():
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        assert inspect.getdoc(found), name
        for method, value in vars(found).items() if inspect.isclass(found) else ():
            if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{method}"


def test_every_public_name_is_documented() -> None:
    homes = {f"{home}.{name}" for name, home in dbelief._HOMES.items()}
    assert set(dbelief.__all__) == set(dbelief._HOMES)
    written = {
        f"{module}.{name.strip()}"
        for path in [*(ROOT / "examples").glob("*.py"), *DOCS.rglob("*.md"), ROOT / "README.md"]
        for module, names in re.findall(r"from (dbelief[\w.]*) import ([\w, ]+)", path.read_text())
        for name in names.split(",")
    }
    assert homes | {name for name in written if not name.startswith("dbelief.errors")} <= set(_documented())
