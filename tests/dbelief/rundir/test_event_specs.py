import ast
from collections.abc import Iterator
from pathlib import Path

from dbelief.rundir.event_specs import COMMON, EVENTS

ROOT = Path(__file__).parents[3]
OPEN = {"member", "pass", "progress", "scaled"}
"""Events whose fields are not all written where the event is: the state machine's tests check them (`world.py`)."""


def _written() -> Iterator[tuple[str, set[str]]]:
    """Name and literal fields of each event that the coordinator's code logs."""
    for path in (ROOT / "coordinator").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in ("_log_event", "LogEvent"):
                    if not call.args or ast.unparse(call) == "effects.LogEvent(event, fields)":
                        continue
                    for name in _names(call.args[0], function):
                        yield name, _fields(call)


def _names(argument: ast.expr, function: ast.FunctionDef) -> set[str]:
    """The texts that an argument may be: a literal, or a variable that is set from literals."""
    if isinstance(argument, ast.Name):
        values = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == argument.id
        ]
        return {name for value in values for branch in _branches(value) for name in _names(branch, function)}
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    return set()


def _branches(value: ast.expr) -> list[ast.expr]:
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def _fields(call: ast.Call) -> set[str]:
    keys = [key for argument in call.args[1:] if isinstance(argument, ast.Dict) for key in argument.keys]
    return {keyword.arg for keyword in call.keywords if keyword.arg} | {
        str(key.value) for key in keys if isinstance(key, ast.Constant)
    }


def test_the_table_names_exactly_the_events_that_are_logged() -> None:
    assert {name for name, _ in _written()} == set(EVENTS)


def test_the_table_names_exactly_their_fields() -> None:
    for name, fields in _written():
        listed = set(EVENTS[name].fields)
        assert fields <= listed if name in OPEN else fields == listed, name


def test_no_field_has_the_name_of_a_common_one() -> None:
    assert all(not COMMON.keys() & spec.fields.keys() for spec in EVENTS.values())
