"""What of a Ray cluster is decided without one: reservations, and which cluster it is."""

from __future__ import annotations

import pytest

from dbelief.errors import UserError
from dbelief.launch.ray.cluster import cluster_address, share_of


@pytest.mark.parametrize(
    ("cpus", "members", "share"),
    [
        ([8.0], 4, 1.0),
        ([1.0, 1.0, 1.0], 4, 0.5),
        ([2.0, 2.0, 2.0], 7, 0.66),
        ([8.0, 8.0], 17, 0.88),
        ([2.0, 0.0], 6, 0.33),
        ([0.0], 3, 0.01),
    ],
)
def test_all_members_fit_on_the_nodes(cpus: list[float], members: int, share: float) -> None:
    assert share_of(cpus, members) == share


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RAY_ADDRESS": "127.0.0.1:1"}, "no Ray cluster answers at 127.0.0.1:1 .RAY_ADDRESS.: .*refused"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:1"}, "ray://: the launcher must run on a node of the cluster"),
        ({"RAY_ADDRESS": "nowhere"}, "no Ray cluster answers at nowhere"),
        ({"RAY_TMPDIR": "/nowhere"}, "no Ray cluster runs on this computer, and RAY_ADDRESS names none"),
    ],
)
def test_there_is_no_cluster(environment: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        cluster_address(environment)
