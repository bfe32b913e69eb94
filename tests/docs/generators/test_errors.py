import inspect

import pytest

from dbelief import errors as classes
from docs.generators import errors
from docs.generators.tables import Undocumented


def test_every_error_class_is_in_the_reference_with_its_exit_code() -> None:
    text = errors.reference()
    every = [one for _, one in inspect.getmembers(classes, inspect.isclass) if one.__module__ == classes.__name__]
    assert text.count("\n| `") == len(every) > 10
    for one in every:
        assert f"\n| `{one.__name__}` | " in text
    assert "| 130 | `RuntimeFailure` |" in text


def test_every_class_is_in_the_tree_of_the_module() -> None:
    tree = inspect.getdoc(classes) or ""
    names = [one.__name__ for one in errors._below(classes.DbeliefError)]
    assert [name for name in names if name not in tree] == []


def test_a_missing_docstring_is_refused() -> None:
    silent = type("Silent", (classes.UserError,), {})
    with pytest.raises(Undocumented, match="class Silent has no description"):
        errors._row(silent)
