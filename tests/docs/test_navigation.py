"""The site's navigation, and the names that its Python reference documents."""

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dbelief
import dbelief.errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "python_api.md"
WHOLE = ("dbelief.nn.model", "dbelief.nn.torch_model", "dbelief.training.client")
"""Modules each of whose classes and functions is public; `dbelief.errors` has a page of its own."""
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


def _found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _public() -> Iterator[tuple[str, Any]]:
    """Documented names, and the public methods and properties of those that are classes and are shown with them."""
    without_methods = re.findall(r"^::: ([\w.]+)\n.*members: \[\]", API.read_text(), re.MULTILINE)
    for name in _documented():
        needed = {"dbelief.torch": "torch", "dbelief.integrations": "transformers"}.get(".".join(name.split(".")[:2]))
        if needed and importlib.util.find_spec(needed) is None:
            continue
        found = _found(name)
        yield name, found
        for method, value in vars(found).items() if inspect.isclass(found) and name not in without_methods else ():
            if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                yield f"{name}.{method}", value


def undocumented(name: str, value: Any) -> list[str]:
    """What the docstring of a class, function or property lacks: each parameter, the result, each error it raises."""
    text = inspect.getdoc(value)
    if not text:
        return [f"{name}: no docstring"]
    if not inspect.isfunction(value):
        return []
    signature = inspect.signature(value)
    wanted = [("Parameters", parameter) for parameter in signature.parameters if parameter != "self"]
    if signature.return_annotation not in (None, "None"):
        wanted.append(("Returns", ""))
    tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    wanted += [
        ("Raises", error.func.id)
        for error in raised
        if isinstance(error, ast.Call) and isinstance(error.func, ast.Name)
    ]
    sections = dict(re.findall(r"^(\w+)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL))
    return [
        f"{name}: {section} {entry}".rstrip()
        for section, entry in dict.fromkeys(wanted)
        if section not in sections or not re.search(rf"^{entry}\b" if entry else r"\S", sections[section], re.MULTILINE)
    ]


def test_every_public_name_has_a_docstring_of_what_it_takes_returns_and_raises() -> None:
    assert [lack for name, value in _public() for lack in undocumented(name, value)] == []


def test_a_docstring_that_lacks_something_is_found() -> None:
    def silent() -> None: ...

    def half(one: int, two: int) -> int:
        """Add.

        Parameters
        ----------
        one
            The first.
        """
        if one < 0:
            raise ValueError("one")
        return one + two

    assert undocumented("silent", silent) == ["silent: no docstring"]
    assert undocumented("half", half) == ["half: Parameters two", "half: Returns", "half: Raises ValueError"]


@pytest.mark.parametrize("module", WHOLE)
def test_every_name_of_a_public_module_is_documented(module: str) -> None:
    own = importlib.import_module(module)
    names = {
        f"{module}.{name}"
        for name, value in vars(own).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    }
    assert names, "a module without a class or a function is not public"
    assert names <= set(_documented())
    assert all(inspect.getdoc(_found(name)) for name in names)


def test_every_error_has_a_docstring() -> None:
    classes = [value for value in vars(dbelief.errors).values() if inspect.isclass(value)]
    assert len(classes) > 10
    assert [error.__name__ for error in classes if not error.__doc__] == []


def test_every_public_name_is_documented() -> None:
    homes = {f"{home}.{name}" for name, home in dbelief._HOMES.items()}
    assert set(dbelief.__all__) == set(dbelief._HOMES)
    written = {
        f"{module}.{name.strip()}"
        for path in [*(ROOT / "examples").glob("*.py"), *DOCS.rglob("*.md"), ROOT / "README.md"]
        if path.parent.name != "results"  # commands of measurements, which use what they measure
        for module, names in re.findall(r"from (dbelief[\w.]*) import ([\w, ]+)", path.read_text())
        for name in names.split(",")
    }
    assert homes | {name for name in written if not name.startswith("dbelief.errors")} <= set(_documented())
