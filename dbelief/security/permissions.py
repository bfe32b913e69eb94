"""Who may call what: one line for every method of ours.

What is not listed (gRPC's health and reflection) is for everyone of the job.
"""

from collections.abc import Mapping

ALL = frozenset({"coordinator", "ps", "worker", "operator", "viewer"})

_BY_SERVICE: Mapping[str, Mapping[str, frozenset[str]]] = {
    "dbelief.v1.Coordinator": {
        "Join": frozenset({"ps", "worker"}),  # each as what it is: see `dbelief.rpc.server.auth.must_be`
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
        "Attach": frozenset({"worker"}),
        "Exchange": frozenset({"worker"}),
        "Stats": ALL,
        "Give": frozenset({"coordinator"}),
        "Carry": frozenset({"ps"}),
    },
}

PERMISSIONS: Mapping[str, frozenset[str]] = {
    f"/{service}/{method}": roles for service, methods in _BY_SERVICE.items() for method, roles in methods.items()
}
"""Roles by the full name of a method, as gRPC has it."""
