import itertools

from dbelief.rpc.pb import coordination_pb2, parameters_pb2
from dbelief.security import PERSONS, ROLES
from dbelief.security.permissions import ALL, PERMISSIONS


def test_every_method_has_its_line() -> None:
    """A method that is added is for nobody until somebody says for whom."""
    files = (coordination_pb2.DESCRIPTOR, parameters_pb2.DESCRIPTOR)
    services = itertools.chain.from_iterable(file.services_by_name.values() for file in files)
    assert set(PERMISSIONS) == {
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    }


def test_rights_are_of_roles_that_have_tokens() -> None:
    assert set(ROLES) | set(PERSONS) == ALL
    assert all(roles and roles <= ALL for roles in PERMISSIONS.values())


def test_commands_need_the_coordinator_or_operator_role() -> None:
    for method in ("Configure", "Operate", "Snapshot", "Restore"):
        assert PERMISSIONS[f"/dbelief.v1.Parameters/{method}"] == {"coordinator"}
    assert PERMISSIONS["/dbelief.v1.Coordinator/Stop"] == {"operator"}
    assert {method for method, roles in PERMISSIONS.items() if "viewer" in roles} == {
        "/dbelief.v1.Coordinator/Status",
        "/dbelief.v1.Parameters/Stats",
    }
