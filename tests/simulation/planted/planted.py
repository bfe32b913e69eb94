"""A planted error: a replacement of text that occurs exactly once in a file of the product."""

from typing import NamedTuple


class Planted(NamedTuple):
    """One error; `before` occurs exactly once in `file`, and is replaced by `after`.

    `job`: that of the seeds that are searched; "": all.
    """

    name: str
    file: str
    before: str
    after: str
    breaks: str
    job: str = ""
