"""Errors that the simulation must find."""

from typing import NamedTuple


class Planted(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    breaks: str


PLANTED = (
    Planted(
        "duplicates",
        "ps_server/store/ledger.py",
        "        return push.sequence == last + 1\n",
        "        return True\n",
        "",
    ),
    Planted(
        "early",
        "ps_server/replication/link.py",
        "return free or (self.state is LinkState.IN_SYNC and self._acknowledged >= appended)",
        "return True",
        "",
    ),
)
