"""What is wrong with a job, in sentences: file, line, path, what is allowed, and the nearest right name."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from .section import Section
from .type_names import allowed, discriminator, section_in, tags, variants
from .yaml_document import Document, Path, dotted, shortened

_MOST_LINES = 50
_KEY = "[key]"
"""What Pydantic ends a location with where it is the name in a mapping that is wrong."""

# What other systems call it; no measure of likeness would find these.
_SAME = {
    "gpu": "cuda",
    "lr": "rate",
    "learning_rate": "rate",
    "workers": "replicas",
    "servers": "shards",
    "optimizer": "rule",
    "lambda": "sparsity",
    "separator": "delimiter",
    "sep": "delimiter",
    "na_values": "missing_values",
    "standardise": "standardize",
    "normalize": "standardize",
}


@dataclass(frozen=True)
class Problem:
    """One wrong field; `meant` is the field beside it that a misspelt one stands for."""

    path: Path
    sentence: str
    missing: bool = False
    meant: str | None = None


def render(error: ValidationError, job: type[Section], document: Document, where: str) -> str:
    """Write one line per problem, in the order of the file.

    Parameters
    ----------
    error : ValidationError
    job : type of Section
        The section at the top.
    document : Document
        Tells the line of each field.
    where : str
        Name of the file.
    """
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        problem = _problem(detail, job)
        # Each member of a union such as "share or count" complains: once is enough.
        found.setdefault(problem.path, problem)
    problems = sorted(_without_echoes(found.values()), key=lambda problem: document.line(problem.path) or inf)
    lines = []
    for problem in problems[:_MOST_LINES]:
        line = document.line(problem.path)
        field = f" {dotted(problem.path)}:" if problem.path else ""
        lines.append(f"{where}{'' if line is None else f', line {line}'}:{field} {problem.sentence}")
    if len(problems) > _MOST_LINES:
        lines.append(f"{where}: and {len(problems) - _MOST_LINES} more")
    return "\n".join(lines)


def _without_echoes(problems: Collection[Problem]) -> list[Problem]:
    """Leave out fields that are missing only because their names are misspelt."""
    meant: dict[Path, set[str]] = {}
    for problem in problems:
        if problem.meant:
            meant.setdefault(problem.path[:-1], set()).add(problem.meant)

    def echo(problem: Problem) -> bool:
        names = meant.get(problem.path[:-1], set())
        # A misspelt `python`, `zoo`, `autoencoder` or `stacks` makes layers and loss look missing.
        return problem.missing and not names.isdisjoint({problem.path[-1], "python", "zoo", "autoencoder", "stacks"})

    return [problem for problem in problems if not echo(problem)]


@dataclass
class _Place:
    """Where an error is: its path, the section around it, and its field where there is such a field."""

    path: Path = ()
    owner: type[Section] | None = None
    field: FieldInfo | None = None
    choices: tuple[type[Section], ...] = ()  # sections that could have stood where `owner` stands


def _locate(location: Iterable[str | int], job: type[Section]) -> _Place:
    """Follow an error's location through the sections; names of union members in it are in no file."""
    place = _Place()
    section: type[Section] | None = job
    members: dict[str, type[Section] | None] = {}
    choices: tuple[type[Section], ...] = ()
    named = False  # the next part is a name that the file gives to a section
    for part in location:
        if part == _KEY:
            break
        if isinstance(part, int) or named:
            place.path, named = (*place.path, part), False
        elif members:
            section, choices, members = members[part], tuple(one for one in members.values() if one), {}
        elif section is not None:
            field = section.model_fields.get(part)
            place = _Place((*place.path, part), section, field, choices)
            members = tags(field) if field else {}
            section, choices = (section_in(field) if field and not members else None), ()
            named = field is not None and section is not None and get_origin(field.annotation) is dict
    return place


def _problem(detail: Any, job: type[Section]) -> Problem:
    place = _locate(detail["loc"], job)
    path, kind, value = place.path, detail["type"], detail["input"]
    if kind == "refused":
        at = detail["ctx"]["at"]
        return Problem(path + tuple(at.split(".") if at else ()), detail["ctx"]["sentence"])
    if kind == "extra_forbidden" and place.owner is not None:
        return _unknown_field(path, place, job)
    if place.field is None:
        return Problem(path, "must be a mapping whose keys are text")
    if get_origin(place.field.annotation) is dict and section_in(place.field) is not None:
        if detail["loc"][-1] == _KEY:
            key = FieldInfo.from_annotation(get_args(place.field.annotation)[0])
            return Problem(path, f"the name {_wrong_value(allowed(key), value, ())}")
        return Problem(path, _wrong_value("a mapping", value, ()))
    if kind.startswith("union_tag") and isinstance(value, dict):
        name, choices = discriminator(list(variants(place.field).values()))
        path, value = (*path, name), value.get(name, _MISSING)
        return Problem(path, _wrong_value(f"one of {', '.join(choices)}", value, choices))
    missing = kind == "missing"
    takes = allowed(place.field, item=bool(path) and isinstance(path[-1], int))
    sentence = _wrong_value(takes, _MISSING if missing else value, _choices(place.field))
    if kind == "string_type" and isinstance(value, int | float):
        sentence += " (quotes make it text)"
    return Problem(path, sentence, missing)


_MISSING = object()


def _wrong_value(takes: str, value: object, choices: Iterable[str]) -> str:
    if value is _MISSING:
        return f"missing; must be {takes}"
    near = nearest(value, choices) if isinstance(value, str) else None
    return f"must be {takes}, not {_shown(value)}" + (f"; did you mean {near}?" if near else "")


def _unknown_field(path: Path, place: _Place, job: type[Section]) -> Problem:
    name, own = str(path[-1]), place.owner.model_fields if place.owner else {}
    others = [field for section in place.choices for field in section.model_fields if field != name]
    near = nearest(name, own) or nearest(name, others)
    guesses = [near] if near else []
    if not near:
        elsewhere = [dotted(other) for other in _paths(job) if other[-1] in (name, _SAME.get(name))]
        guesses = [other for other in elsewhere if other != dotted(path)][:3]
    hint = f", did you mean {' or '.join(guesses)}?" if guesses else ""
    return Problem(path, f"no such field{hint} (allowed: {', '.join(own) or 'none'})", meant=near)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely stands for; None where none is near."""
    by_lower = {other.lower(): other for other in known}
    if _SAME.get(name.lower()) in by_lower:
        return by_lower[_SAME[name.lower()]]
    lower = name.lower()[:80]
    found = difflib.get_close_matches(lower, by_lower, n=1)
    found += [other for other in by_lower if len(lower) > 2 and other.startswith(lower)]
    return by_lower[found[0]] if found else None


def _choices(field: FieldInfo) -> list[str]:
    """Words a field takes."""
    found, annotations = [], [field.annotation]
    for annotation in annotations:
        if get_origin(annotation) is Literal:
            found += [choice for choice in get_args(annotation) if isinstance(choice, str)]
        else:
            annotations += get_args(annotation)
    return found


def _paths(section: type[Section]) -> Iterator[Path]:
    """Paths of all fields of a job, list places left out."""
    for name, field in section.model_fields.items():
        yield (name,)
        one = section_in(field)
        below = list(variants(field).values()) or ([one] if one else [])
        seen = dict.fromkeys(path for inner in below for path in _paths(inner))
        yield from ((name, *path) for path in seen)


def _shown(value: object) -> str:
    """Show a value as a job file would have it, on one short line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):  # str() of a very long one is refused by Python
        return str(value) if abs(value) < 10**40 else "a very large number"
    return repr(shortened(value, 60)) if isinstance(value, str) else f"a {type(value).__name__}"
