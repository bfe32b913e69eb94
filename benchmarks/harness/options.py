"""Command-line options that several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose --help shows the script's docstring as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_job(parser: argparse.ArgumentParser, job: Path) -> None:
    """The job file, and fields that replace its own."""
    parser.add_argument("--job", type=Path, default=job)
    add_fields(parser)


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Fields that replace those of the job; `fields_of` reads them."""
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")


def fields_of(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(item.split("=", 1) for item in arguments.set)


def settings(fields: Mapping[str, object]) -> list[str]:
    """The same fields as options of a `dbelief` command."""
    return [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def ascending(text: str) -> list[int]:
    return sorted(numbers(text))


def words(text: str) -> list[str]:
    return text.split(",")
