from dbelief.rundir.summary import Summary
from docs.generators import summary


def test_every_field_is_in_the_reference() -> None:
    text = summary.reference()
    assert [name for name in Summary.model_fields if f"| `{name}` | " not in text] == []
