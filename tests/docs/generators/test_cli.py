import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from docs.generators.cli import ARGUMENTS, reference
from docs.generators.tables import Undocumented

ROOT = Path(__file__).parents[3]

# A process of its own: entry points import the programs under their installed names, which the tests must not.
_SHOWN = """
import click, json
from dbelief.cli.main import main
from docs.generators.cli import reference
info = click.Context(main).to_info_dict()
def helps(command, path):
    context = click.Context(command, info_name=path, terminal_width=80)
    found = {path: command.get_help(context)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found |= helps(command.get_command(context, name), f"{path} {name}")
    return found
print(json.dumps({"reference": reference(), "root": info["command"], "helps": helps(main, "dbelief")}, default=str))
"""


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """The reference, and what Click says of all commands."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOWN], cwd=ROOT, timeout=300, check=True, stdout=subprocess.PIPE, text=True
    )
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def _commands(command: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not command["hidden"]:
        yield path, command
        for name, below in command.get("commands", {}).items():
            yield from _commands(below, f"{path} {name}")


def test_every_command_and_option_is_in_the_reference(shown: dict[str, Any]) -> None:
    text = shown["reference"]
    parts = {part.splitlines()[0].lstrip("# "): part for part in re.split(r"^(?=##)", text, flags=re.MULTILINE) if part}
    commands = dict(_commands(shown["root"], "dbelief"))
    assert set(parts) == set(commands)
    assert {"dbelief ps", "dbelief worker", "dbelief coordinator", "dbelief bench wire"} <= set(parts)
    for path, command in commands.items():
        for option in command["params"]:
            if option["param_type_name"] == "option" and not option["hidden"] and "--help" not in option["opts"]:
                assert f"`{option['opts'][0]}`" in parts[path], f"{path} {option['opts']}"


def test_every_help_is_whole_at_80_columns(shown: dict[str, Any]) -> None:
    assert {"dbelief", "dbelief ps", "dbelief job check"} <= shown["helps"].keys()
    for path, text in shown["helps"].items():
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80, path
        assert not [line for line in lines if line.endswith("...") and not line.startswith(("Usage", "  --"))], path


def test_defaults_bounds_and_variables_are_shown(shown: dict[str, Any]) -> None:
    text = shown["reference"]
    assert "| `--listen` `TEXT` | Address to listen on; port 0: any free. Variable: `DBELIEF_LISTEN`. |" in text
    assert "| `--window` `INTEGER` | Tiles that a block sees each way. At least 1. | `5` |" in text
    assert "| `--shared-memory`, `--no-shared-memory` |" in text
    assert "| `--coordinator` `HOST:PORT` | Where the job's coordinator listens. | required |" in text
    assert "Sentinel" not in text


def test_every_described_argument_is_some_commands(shown: dict[str, Any]) -> None:
    used = set(re.findall(r"^\| `([^`]+)` \| ", shown["reference"].replace("\\|", "|"), re.MULTILINE))
    assert set(ARGUMENTS) <= used


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (click.Command("x"), "dbelief x has no description"),
        (click.Command("x", help="H", params=[click.Option(["--o"])]), "dbelief x: option --o has no description"),
        (click.Command("x", help="H", params=[click.Argument(["odd"])]), "argument ODD has no description"),
    ],
)
def test_a_missing_description_is_refused(command: click.Command, message: str) -> None:
    with pytest.raises(Undocumented, match=message):
        reference(command, "dbelief x")


def test_every_environment_variable_is_on_the_page(shown: dict[str, Any]) -> None:
    source = "".join(
        path.read_text()
        for folder in ("dbelief", "worker", "ps_server", "coordinator")
        for path in (ROOT / folder).rglob("*.py")
        if "bench" not in path.parts
    )
    page = (ROOT / "docs" / "reference" / "cli.md").read_text() + shown["reference"]
    internal = {"DBELIEF_COMPUTE_WAIT"}  # of a hidden option
    assert {name for name in re.findall(r"\bDBELIEF_[A-Z_]+\b", source) if f"`{name}`" not in page} == internal
