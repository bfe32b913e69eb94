"""What a field takes, in words, from its type: one place, so that no message can disagree with the check."""

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Tag
from pydantic.fields import FieldInfo

from .section import LARGEST, Section, Words


def allowed(field: FieldInfo, *, item: bool = False) -> str:
    """Say what a field (or, of a list, one item) takes: "a whole number from 1 to 256"."""
    annotation = field.annotation
    if item:
        while get_origin(annotation) is not tuple:
            annotation = get_args(annotation)[0]
        return _words(get_args(annotation)[0], ())
    return _words(annotation, field.metadata)


def _words(annotation: Any, metadata: Sequence[Any]) -> str:
    for mark in metadata:
        if isinstance(mark, Words):
            return mark.text
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(args[0], [*args[1:], *metadata])
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return ("" if len(args) == 1 else "one of ") + ", ".join(str(choice) for choice in args)
    if origin is tuple:
        return f"a list, each {_words(args[0], ())}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"a mapping with {', '.join(annotation.model_fields)}" if annotation.model_fields else "nothing"
    plain = {bool: "true or false", str: "text", type(None): "null"}
    if annotation in plain:
        return plain[annotation]
    return ("a whole number" if annotation is int else "a number") + _bounds(metadata)


def _union(args: Sequence[Any]) -> str:
    sections = [arg for arg in args if isinstance(arg, type) and issubclass(arg, Section)]
    if len(sections) > 1:
        name, choices = discriminator(sections)
        return f"a mapping with {name}, one of {', '.join(choices)}"
    return ", or ".join(_words(arg, ()) for arg in args)


def discriminator(sections: Sequence[type[Section]]) -> tuple[str, dict[str, type[Section]]]:
    """The field that distinguishes sections, the first of each, and the section of each of its values."""
    name = next(name for name in sections[0].model_fields if all(_is_choice(section, name) for section in sections))
    return name, {value: section for section in sections for value in get_args(section.model_fields[name].annotation)}


def _is_choice(section: type[Section], name: str) -> bool:
    field = section.model_fields.get(name)
    return field is not None and field.is_required() and get_origin(field.annotation) is Literal


def _bounds(metadata: Sequence[Any]) -> str:
    marks: dict[type, Any] = {}
    for mark in metadata:
        for bound in mark.metadata if isinstance(mark, FieldInfo) else (mark,):
            marks[type(bound)] = bound
    if Ge in marks and Le in marks:
        return f" from {marks[Ge].ge:g} to {_number(marks[Le].le)}"
    if Ge in marks and Lt in marks:
        return f" from {marks[Ge].ge:g} to below {marks[Lt].lt:g}"
    if Gt in marks and Lt in marks:
        return f" above {marks[Gt].gt:g} and below {marks[Lt].lt:g}"
    if Gt in marks and Le in marks:
        return f" above {marks[Gt].gt:g} and at most {_number(marks[Le].le)}"
    if Gt in marks:
        return f" above {marks[Gt].gt:g}"
    return f" of at least {marks[Ge].ge:g}" if Ge in marks else ""


def _number(value: float) -> str:
    return "10^15" if value == LARGEST else f"{value:,}"


def variants(field: FieldInfo) -> dict[str, type[Section]]:
    """Sections a field may hold, by what Pydantic calls them in an error; empty where there is no choice."""
    return {tag: section for tag, section in tags(field).items() if section is not None}


def tags(field: FieldInfo) -> dict[str, type[Section] | None]:
    """As `variants`, with what is no section: None."""
    found: dict[str, type[Section] | None] = {}
    plain: list[type[Section]] = []
    for arg in get_args(_one(field)):
        if get_origin(arg) is Annotated:
            kind = get_args(arg)[0]
            section = kind if isinstance(kind, type) and issubclass(kind, Section) else None
            found.update({mark.tag: section for mark in get_args(arg) if isinstance(mark, Tag)})
        elif isinstance(arg, type) and issubclass(arg, Section):
            plain.append(arg)
    return found or (dict(discriminator(plain)[1]) if len(plain) > 1 else {})


def _one(field: FieldInfo) -> Any:
    """The type of a field's value or, of a list, of one item."""
    annotation: Any = field.annotation
    while get_origin(annotation) in (Annotated, tuple):
        annotation = get_args(annotation)[0]
    return annotation


def section_in(field: FieldInfo) -> type[Section] | None:
    """The one section a field may hold, also as an item of a list or beside null; else None."""
    annotation = _one(field)
    options = get_args(annotation) or (annotation,)
    found = [option for option in options if isinstance(option, type) and issubclass(option, Section)]
    return found[0] if len(found) == 1 else None
