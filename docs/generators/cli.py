"""Reference of the command line, from Click: every command with its arguments, options, defaults and variables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import click

from dbelief.cli.main import main

from .tables import Undocumented, code, plain, required, table

ARGUMENTS: Mapping[str, str] = {
    "COUNT": "The new number, at least 1.",
    "SCRIPT [ARGUMENT]...": "A Python file, or any command: see [A PyTorch script](../how-to/pytorch_script.md).",
    "[-- SCRIPT [ARGUMENT]...]": "A command that joins the job in place of this worker, and its arguments.",
    "DIR": "The folder to create.",
    "FILE": "Path of a comparison file: see [Job file](job_file.md#comparison-file).",
    "HOST:PORT": "Address of a coordinator or a shard; if omitted, the variable `DBELIEF_LISTEN`.",
    "JOB": "Path of a [job file](job_file.md).",
    "JOB|RUN|NETWORK": "Path of a [job file](job_file.md), a run folder, or a network of the zoo (`dbelief zoo`).",
    "JOB|RUN...": "Path of a [job file](job_file.md); with `--calibrate` run folders.",
    "RUN": "A run folder.",
    "WHAT": "`workers`, or `ps` for shards.",
    "[HOST:PORT | RUN]": "Address of the job's coordinator, or a run folder.",
    "[TOPIC]": "A topic or a command; if omitted, the topics are listed.",
    "[NETWORK]": "Name of a network; if omitted, all are listed.",
}
"""Descriptions of arguments, which Click does not keep, by what stands for them in the usage line."""


def reference(root: click.Command = main, name: str = "dbelief") -> str:
    """Sections of all commands that are not hidden, the group first.

    Raises
    ------
    Undocumented
        A command, an argument or an option has no description.
    """
    return "\n".join(_sections(root, name, None))


def _sections(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, parent, info_name=path.rsplit(" ", 1)[-1], **command.context_settings)
    yield f"{'#' * min(3, 1 + len(path.split()))} {path}\n"
    yield _text(command.help, path)
    usage = [piece for piece in command.collect_usage_pieces(context) if piece]
    yield f"```text\n{' '.join([path, *usage])}\n```\n"
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    if arguments:
        yield table(("argument", "meaning"), [_argument(argument, path) for argument in arguments])
    options = [
        parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    if options:
        yield table(
            ("option", "meaning", "default"),
            [_option(option, context, path) for option in options],
        )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{path} lists {name}, and has no such command"
            if not below.hidden:
                yield from _sections(below, f"{path} {name}", context)


def _text(text: str | None, what: str) -> str:
    required(text, what)
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(plain(" ".join(paragraph.split())) for paragraph in paragraphs) + "\n"


def _argument(argument: click.Argument, path: str) -> tuple[str, str]:
    name = argument.metavar or str(argument.name).upper()
    if name not in ARGUMENTS:
        raise Undocumented(f"{path}: argument {name} has no description in ARGUMENTS")
    return code(name), ARGUMENTS[name]


def _option(option: click.Option, context: click.Context, path: str) -> tuple[str, str, str]:
    what = f"{path}: option {option.opts[-1]}"
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    text = plain(required(option.help, what))
    if not option.is_flag:
        names += f" {code(_takes(option, context))}"
        text += _bounds(option.type)
    if isinstance(option.envvar, str):
        text += f" Variable: {code(option.envvar)}."
    if option.multiple:
        text += " May be repeated."
    return names, text, _default(option, context)


def _takes(option: click.Option, context: click.Context) -> str:
    """What stands for the option's value: its metavar, or the kind of value."""
    if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
        return "INTEGER" if isinstance(option.type, click.IntRange) else "NUMBER"
    return option.make_metavar(context).replace("INTEGER RANGE", "INTEGER")


def _bounds(kind: object) -> str:
    if not isinstance(kind, click.IntRange | click.FloatRange) or kind.min is None:
        return ""
    if kind.max is not None:
        return f" From {kind.min:g} to {kind.max:g}."
    return f" Above {kind.min:g}." if kind.min_open else f" At least {kind.min:g}." if kind.min else ""


def _default(option: click.Option, context: click.Context) -> str:
    value: Any = option.to_info_dict()["default"]
    if option.required:
        return "required"
    if option.is_flag and option.secondary_opts:
        return code(option.opts[0] if value else option.secondary_opts[0])
    if value in (None, False, "", ()):
        return ""
    if isinstance(value, tuple | list):
        return code(", ".join(map(str, value)))
    return code(f"{value:g}" if isinstance(value, float) else str(value))
