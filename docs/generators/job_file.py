"""Reference of the job file and of the comparison file, from their Pydantic models: every field of every section."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from typing import Any, get_args

from pydantic.fields import FieldInfo

from dbelief.job import Job
from dbelief.job.comparison import Comparison
from dbelief.job.document.section import Section
from dbelief.job.document.type_names import allowed, section_in, variants

from .tables import code, plain, required, table


def job_file() -> str:
    """Fields of a job file, and below them those of each section.

    Raises
    ------
    Undocumented
        A section or a field has no description.
    """
    return _Reference("job.", Job).text()


def comparison_file() -> str:
    """Fields of a comparison file, as `job_file`."""
    return _Reference("comparison.", Comparison).text()


class _Reference:
    """A part for each section, where it occurs first; other fields that hold it link there."""

    def __init__(self, prefix: str, root: type[Section]) -> None:
        self._prefix = prefix
        self._root = root
        self._titles: dict[type[Section], str] = {}
        self._linked: dict[type[Section], str] = {}  # where a part will be, of which a section links to several fields

    def text(self) -> str:
        self._titles[self._root] = ""
        parts = [self._fields(self._root, "")]
        for name, field in self._root.model_fields.items():
            below = list(self._below(name, field, 3))
            if below:
                parts += [f"### {self._prefix}{name} {{#{self._anchor(name)}}}\n", *below]
        return "\n".join(parts)

    def _below(self, path: str, field: FieldInfo, depth: int) -> Iterator[str]:
        """Parts of the sections that a field may hold, each followed by those of its own fields."""
        for tags, section in _sections(field):
            if section in self._titles or not (section.model_fields or tags):
                continue
            title = f"{path}: {', '.join(tags)}" if tags else path
            self._titles[section] = self._anchor(title)
            if tags or depth > 3:
                yield f"#### {self._prefix}{title} {{#{self._anchor(title)}}}\n"
            yield plain(required(section.__doc__, f"section {title} ({section.__name__})")) + "\n"
            yield self._fields(section, path)
            for name, own in section.model_fields.items():
                yield from self._below(f"{path}.{name}", own, depth + 1)

    def _anchor(self, title: str) -> str:
        """The anchor of a part: `strategy: downpour` and `strategy.downpour` are different ones."""
        return "".join(character if character.isalnum() else "-" for character in f"{self._prefix}{title}".lower())

    def _fields(self, section: type[Section], path: str) -> str:
        head = ("field", "meaning", "takes", "default")
        return table(head, [self._row(path, name, field) for name, field in section.model_fields.items()])

    def _row(self, path: str, name: str, field: FieldInfo) -> tuple[str, str, str, str]:
        where = f"{path}.{name}" if path else name
        meaning = plain(required(field.description, f"field {where}"))
        return code(name), meaning, self._takes(where, field), _default(field)

    def _takes(self, path: str, field: FieldInfo) -> str:
        links = []
        for tags, section in _sections(field):
            if not section.model_fields and not tags:
                return "nothing"
            here = self._anchor(f"{path}: {', '.join(tags)}" if tags else path)
            anchor = self._titles.get(section) or self._linked.setdefault(section, here)
            links.append(f"[{', '.join(tags) or 'section'}](#{anchor})")
        if not links:
            return plain(allowed(field))
        several = "list of " if field.annotation is not None and "tuple" in str(field.annotation) else ""
        null = " or null" if type(None) in get_args(field.annotation) else ""
        return f"{several}{', '.join(links)}{null}"


def _sections(field: FieldInfo) -> list[tuple[tuple[str, ...], type[Section]]]:
    """Sections that a field may hold, each with the names that choose it; no names where there is one section."""
    choices: dict[type[Section], list[str]] = {}
    for tag, section in variants(field).items():
        choices.setdefault(section, []).append(str(tag))
    if choices:
        return [(tuple(tags), section) for section, tags in choices.items()]
    one = section_in(field)
    return [] if one is None else [((), one)]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        set_fields = {name: getattr(value, name) for name in value.model_fields_set}
        return code(_json(set_fields)) if set_fields else "its defaults"
    return code(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain_value, ensure_ascii=False)


def _plain_value(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Section):
        return value.model_dump(mode="json")
    raise TypeError(type(value))
