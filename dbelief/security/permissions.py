"""Permissions: the roles that may call each method of the system.

Methods that are not listed (gRPC's health and reflection) are allowed to every role of the job.
"""

from collections.abc import Mapping

ALL = frozenset({"coordinator", "ps", "worker", "operator", "viewer"})

_BY_SERVICE: Mapping[str, Mapping[str, frozenset[str]]] = {
    "dbelief.v1.Coordinator": {
        "Join": frozenset({"ps", "worker"}),  # only in its own role: see `dbelief.rpc.server.auth.must_be`
        "Beat": frozenset({"ps", "worker"}),
        "Lease": frozenset({"worker"}),
        "Report": frozenset({"worker", "operator"}),  # a launcher's token is the operator's
        "Status": ALL,
        "Stop": frozenset({"operator"}),
        "Scale": frozenset({"operator"}),
    },
    "dbelief.v1.Parameters": {
        "Configure": frozenset({"coordinator"}),
        "Operate": frozenset({"coordinator"}),
        "Snapshot": frozenset({"coordinator"}),
        "Restore": frozenset({"coordinator"}),
        "Pull": frozenset({"worker", "coordinator"}),
        "Push": frozenset({"worker"}),
        "Attach": frozenset({"worker", "ps"}),  # a leader passes the memory of workers on to its follower
        "Open": frozenset({"worker"}),
        "Exchange": frozenset({"worker"}),
        "Stats": ALL,
        "Give": frozenset({"coordinator"}),
        "Carry": frozenset({"ps"}),
    },
}

PERMISSIONS: Mapping[str, frozenset[str]] = {
    f"/{service}/{method}": roles for service, methods in _BY_SERVICE.items() for method, roles in methods.items()
}
"""Roles by the full name of a method, in gRPC's form."""
