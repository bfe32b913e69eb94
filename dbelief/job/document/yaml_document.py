"""YAML text to plain values, and back, with the line of every field.

A job file's scalars are those of YAML 1.2's core schema, so that 1e-3 is a number while no, 1:30 and
2026-01-01 are text; underscores may group the digits of a whole number. PyYAML's constructors (YAML 1.1)
are not used: the node graph is turned into values here, which also refuses duplicate keys and tags, and
remembers lines.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from dbelief.errors import JobError

Path = tuple[str | int, ...]
"""Keys and list places from the top to a value."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = [
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("int", r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)", list("-+0123456789")),
    (
        "float",
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
        list("-+0123456789."),
    ),
]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own name)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML writes these line breaks of Unicode as they are in single quotes, and reads them back as spaces.
        odd = any(character in data for character in "\x85\u2028\u2029")
        style = '"' if odd else "|" if data.count("\n") > 1 else None  # a text of several lines as such
        return self.represent_scalar(_TAG + "str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _kind, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(_pattern + r"\Z"), _first)


def dotted(path: Path) -> str:
    """Write a path as `strategy.rule.rate`; a name that is long or would not print is shortened or quoted."""
    return ".".join(_printable(str(part)) for part in path)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and three dots."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _printable(text: str) -> str:
    short = shortened(text, 60)
    return short if short.isprintable() and short else repr(short)


@dataclass(frozen=True)
class Document:
    """Plain values, and the line (from 1) on which each field stands.

    `replaced` holds dotted paths of values that came from elsewhere, so that they have no line.
    """

    value: object
    lines: Mapping[Path, int] = field(default_factory=dict)
    replaced: Collection[str] = ()

    def line(self, path: Path) -> int | None:
        """Line of the field, or of the nearest section around it that was written down."""
        if any(dotted(path[:depth]) in self.replaced for depth in range(1, len(path) + 1)):
            return None
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read(text: str, where: str) -> Document:
    """Read YAML.

    Parameters
    ----------
    text : str
    where : str
        Name of the file in messages.

    Raises
    ------
    JobError
        The text is not YAML, repeats a key, or uses a tag; with line and column.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            return Document(None)
        reading = _Reading(where)
        return Document(reading.value(node, ()), reading.lines)
    except yaml.MarkedYAMLError as error:
        cause = error.problem or error.context or "unreadable"
        if cause.startswith("but "):  # PyYAML says the first half in the context
            cause = f"{error.context}, {cause}"
        raise _wrong(where, error.problem_mark or error.context_mark, f"not YAML: {cause}") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        character = f"U+{int(error.character):04X}" if isinstance(error.character, int) else error.character
        raise JobError(
            f"{where}, line {line}, column {column}: not YAML: the character {character} is not allowed"
        ) from None
    except RecursionError:
        raise JobError(f"{where}: not a job: nested too deeply") from None


class _Reading:
    """Turns one node graph into values."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[Path, int] = {}
        # An alias gives the same node again: its value is shared, never walked twice (a few lines of nested
        # aliases can stand for billions of values).
        self._known: dict[int, object] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> object:
        key = id(node)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            raise _wrong(self.where, node.start_mark, "a value holds itself")
        self._open.add(key)
        made: object
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            made = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            made = [self._item(item, (*path, place)) for place, item in enumerate(node.value)]
        else:
            made = self._scalar(node)
        self._open.remove(key)
        self._known[key] = made
        return made

    def _item(self, node: yaml.Node, path: Path) -> object:
        self.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong(self.where, key.start_mark, "the name of a field must be text")
            if key.value in made:
                first = self.lines[(*path, key.value)]
                raise _wrong(self.where, key.start_mark, f"{key.value!r} is given twice, first on line {first}")
            self.lines[(*path, key.value)] = key.start_mark.line + 1
            made[key.value] = self.value(value, (*path, key.value))
        return made

    def _scalar(self, node: yaml.Node) -> object:
        kind = node.tag.removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or kind not in _PLAIN:
            tag = repr(shortened(node.tag.replace(_TAG, "!!"), 40))
            raise _wrong(self.where, node.start_mark, f"the tag {tag} has no meaning in a job")
        try:
            return _PLAIN[kind](node.value)
        except (ValueError, KeyError):
            cause = f"{shortened(node.value, 40)!r} cannot be read as {kind}"
            raise _wrong(self.where, node.start_mark, cause) from None


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    return int(digits, 0) if "0x" in digits or "0o" in digits else int(digits)


_PLAIN: dict[str, Callable[[str], object]] = {
    "null": lambda text: None,
    "str": str,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _integer,
    "float": lambda text: float(re.sub(r"\.(inf|nan)$", r"\1", text.lower())),
}


def _wrong(where: str, mark: Any, cause: str) -> JobError:
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return JobError(f"{where}{place}: {cause}")


def to_yaml(value: object) -> str:
    """Write plain values as YAML that `read` gives back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
