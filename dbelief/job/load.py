"""From a file, a text or a mapping to a checked job, or to one message that names all that is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import ValidationError

from dbelief.errors import JobError

from .document import yaml_document
from .document.error_messages import nearest, render
from .document.section import Section
from .document.yaml_document import Document
from .job import Job
from .strategies.strategy import Strategy

_LARGEST_FILE_BYTES = 1 << 20
_RATE = "lr"

Kind = TypeVar("Kind", bound=Section)


def load_job(path: Path, overrides: Mapping[str, str] = {}) -> Job:
    """Read and check a job file.

    Parameters
    ----------
    path : Path
        A YAML file in UTF-8.
    overrides : mapping of dotted path to YAML text
        Put in place of what the file says, such as {"strategy.rule.rate": "0.1", "grid.0": "1"}; lr is short for the
        strategy's rate, wherever its section has it.

    Raises
    ------
    JobError
        The file cannot be read, or is no job: one message, a line for each problem, each with file, line, the
        field's dotted path, what is allowed, and the nearest right name where one is misspelt.
    """
    found = yaml_document.read(text_of(path), str(path))
    value, replaced = _overridden(found.value, overrides, str(path))
    return checked(Document(value, found.lines, replaced), path.absolute().parent, str(path), Job)


def parse_job(text: str, folder: Path, where: str) -> Job:
    """Check the text of a job file.

    Parameters
    ----------
    text : str
        YAML.
    folder : Path
        Where relative paths of the job start.
    where : str
        What messages call the file.

    Raises
    ------
    JobError
        As `load_job`.
    """
    return checked(yaml_document.read(text, where), folder, where, Job)


def build_job(fields: Mapping[str, object], folder: Path, where: str = "job", overrides: Mapping[str, str] = {}) -> Job:
    """Check a job that is given as plain values: mappings, lists, text, numbers, true, false, None.

    `overrides`: as of `load_job`.

    Raises
    ------
    JobError
        As `load_job`.
    """
    value, replaced = _overridden(dict(fields), overrides, where)
    return checked(Document(value, replaced=replaced), folder, where, Job)


def _overridden(value: object, overrides: Mapping[str, str], where: str) -> tuple[object, set[str]]:
    """A job's values with `overrides` in place, and the fields that were replaced."""
    replaced = set()
    for key in sorted(overrides, key=lambda key: key == _RATE):  # the rate last: where it is, the strategy says
        field = _rate_field(value, where) if key == _RATE else key
        new = yaml_document.read(overrides[key], f"{where}: the value given for {key}").value
        value = _put(value, _steps(field, where), new, f"{where}: {key}")
        replaced.add(field)
    return value, replaced


def checked(found: Document, folder: Path, where: str, kind: type[Kind]) -> Kind:
    """Check a whole file's values.

    Parameters
    ----------
    folder
        Where its relative paths start.
    kind
        What it is to be; messages call it by its name.

    Raises
    ------
    JobError
        As `load_job`.
    """
    if any("\udc80" <= letter <= "\udcff" for letter in str(folder)):
        # Such a path travels in no message between processes, and in no file of the run.
        raise JobError(f"{where!a}: the name of its folder, {str(folder)!a}, is not UTF-8: rename the folder")
    noun = f"a {kind.__name__.lower()}"
    sections = ", ".join(name for name, field in kind.model_fields.items() if field.is_required())
    if found.value is None or found.value == {}:
        raise JobError(f"{where}: is empty; {noun} is a mapping with {sections} and more")
    if not isinstance(found.value, dict):
        what = "a list" if isinstance(found.value, list) else "a single value"
        raise JobError(f"{where}: {noun} is a mapping with {sections} and more, not {what}")

    try:
        return kind.model_validate(found.value, context={"folder": folder})
    except ValidationError as error:
        raise JobError(render(error, kind, found, where)) from None


def text_of(path: Path) -> str:
    """Read a file that a person wrote.

    Raises
    ------
    JobError
        It or its folder is not there, or it is no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise JobError(f"{path.parent}: no such folder") from None
        raise JobError(f"{path}: no such file{_similar(path)}") from None
    except IsADirectoryError:
        raise JobError(f"{path}: is a directory, not a job file") from None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise JobError(f"{path}: cannot be read: {cause}") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise JobError(f"{path}: is larger than {_LARGEST_FILE_BYTES:,} bytes, so it is no job file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise JobError(f"{path}: is not UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def _similar(path: Path) -> str:
    try:
        near = nearest(path.name, [other.name for other in path.parent.iterdir()])
    except OSError:
        return ""
    return f"; did you mean {path.parent / near}?" if near else ""


def _rate_field(value: object, where: str) -> str:
    """Dotted path of the learning rate in a job that is not checked yet."""
    strategy = value.get("strategy") if isinstance(value, dict) else None
    name = strategy.get("name") if isinstance(strategy, dict) else None
    for section in get_args(get_args(Strategy)[0]):
        fields = section.model_fields
        if name in get_args(fields["name"].annotation):
            for field in ("rule", "inner"):
                if field in fields:
                    return f"strategy.{field}.rate"
            if "rate" not in fields:
                raise JobError(f"{where}: {_RATE}: {name} has no learning rate")
            return "strategy.rate"
    return "strategy.rule.rate"  # the check reports a wrong name


def _steps(key: str, where: str) -> yaml_document.Path:
    steps = tuple(key.split("."))
    if not all(steps):
        raise JobError(f"{where}: {key!r} is not the dotted path of a field, such as strategy.rule.rate")
    return steps


def _put(value: object, steps: yaml_document.Path, new: object, where: str) -> object:
    """Copy `value` with `new` at the end of `steps`; sections on the way are made where they are missing."""
    if not steps:
        return new
    step, rest = str(steps[0]), steps[1:]
    if isinstance(value, list):
        if not step.isdecimal() or int(step) >= len(value):
            raise JobError(f"{where}: {step!r} is not a place in a list of {len(value)}, from 0")
        place = int(step)
        return [*value[:place], _put(value[place], rest, new, where), *value[place + 1 :]]
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise JobError(f"{where}: {step!r} cannot be set in something that is neither a mapping nor a list")
    return {**value, step: _put(value.get(step), rest, new, where)}
