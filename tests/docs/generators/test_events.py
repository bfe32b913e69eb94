import pytest

from dbelief.rundir.event_specs import COMMON, EVENTS
from docs.generators import events
from docs.generators.tables import Undocumented


def test_every_event_and_field_is_in_the_reference() -> None:
    text = events.reference()
    for name, spec in EVENTS.items():
        part = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert part
        assert [field for field in spec.fields if f"| `{field}` | " not in part] == []
    assert all(f"| `{field}` | " in text.partition("\n## ")[0] for field in COMMON)


def test_a_missing_description_is_refused() -> None:
    with pytest.raises(Undocumented, match="event x: field y has no description"):
        events._fields("event x", {"y": ""})
