"""The calls to Kubernetes' API server, by its official client; the one file that imports it."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from dbelief.errors import RuntimeFailure, UserError

from .description import Object

CALL_S = 30.0
"""Time limit of a call, in seconds."""
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MANAGER = "dbelief"
"""Owner of the fields that are applied."""


class ObjectKind(NamedTuple):
    """Names a kind of object."""

    api: str
    kind: str

    @classmethod
    def of(cls, thing: Object) -> ObjectKind:
        """The kind of an object."""
        return cls(thing["apiVersion"], thing["kind"])


class Refused(RuntimeFailure):
    """The API server refused a call.

    Attributes
    ----------
    status
        Of HTTP; 0: the server could not be reached.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class KubernetesApi:
    """Calls in one namespace.

    Parameters
    ----------
    namespace
        None: that of the current context of the configuration file, or of the pod that this process is in.

    Raises
    ------
    UserError
        The extra is not installed, or there is no configuration.
    """

    def __init__(self, namespace: str | None) -> None:
        try:
            from kubernetes import client, config, dynamic
            from urllib3.util.retry import Retry
        except ImportError:
            raise UserError("--on kubernetes needs the extra: pip install 'dbelief[kubernetes]'") from None
        logging.getLogger("kubernetes").setLevel(logging.WARNING)
        configured = _configured(config)
        self.namespace = namespace or configured
        self._core = client.CoreV1Api()
        pool = self._core.api_client.rest_client.pool_manager.connection_pool_kw
        pool["timeout"] = CALL_S  # of discovery
        pool["retries"] = Retry(3, read=False)  # a call that is not answered would take four times its deadline
        with _named("the API server"):
            self._dynamic: Any = cast(Any, dynamic).DynamicClient(self._core.api_client)

    def create(self, thing: Object) -> str:
        """Create an object that is not there; its uid."""
        with _named(f"create {_name(thing)}"):
            made = self._resource(ObjectKind.of(thing)).create(
                body=thing, namespace=self.namespace, field_manager=MANAGER, _request_timeout=CALL_S
            )
        return cast(str, made.metadata.uid)

    def get(self, kind: ObjectKind, name: str) -> Object | None:
        """An object; None where there is none."""
        try:
            with _named(f"read {kind.kind} {name}"):
                found = self._resource(kind).get(name=name, namespace=self.namespace, _request_timeout=CALL_S)
        except Refused as error:
            if error.status == 404:
                return None
            raise
        return cast(Object, found.to_dict())

    def delete(self, kind: ObjectKind, name: str) -> None:
        """Request that an object and all that it owns be removed; nothing where it is gone."""
        try:
            with _named(f"delete {kind.kind} {name}"):
                self._resource(kind).delete(
                    name=name,
                    namespace=self.namespace,
                    body={"propagationPolicy": "Foreground"},
                    _request_timeout=CALL_S,
                )
        except Refused as error:
            if error.status != 404:
                raise

    def patch(self, kind: ObjectKind, name: str, fields: Object) -> None:
        """Change fields of an object that is there."""
        with _named(f"change {kind.kind} {name}"):
            self._resource(kind).patch(
                name=name,
                namespace=self.namespace,
                body=fields,
                content_type="application/merge-patch+json",
                _request_timeout=CALL_S,
            )

    def pods(self, selector: Mapping[str, str]) -> list[Object]:
        """Pods with these labels."""
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        with _named("list pods"):
            found = self._resource(ObjectKind("v1", "Pod")).get(
                namespace=self.namespace, label_selector=labels, _request_timeout=CALL_S
            )
        return cast("list[Object]", found.to_dict()["items"])

    def log(self, pod: str, lines: int) -> list[str]:
        """The last lines of a pod's log."""
        with _named(f"read the log of {pod}"):
            text = self._core.read_namespaced_pod_log(pod, self.namespace, tail_lines=lines, _request_timeout=CALL_S)
        return str(text).splitlines()

    def connect(self, pod: str, port: int) -> socket.socket:
        """A connection to a port of a pod, through the API server; a thread of the client carries its bytes."""
        from kubernetes import client
        from kubernetes.stream import portforward

        core = client.CoreV1Api(client.ApiClient())  # its own: `portforward` replaces a method of it for its call
        with _named(f"forward to {pod}"):
            way = portforward(core.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(port))
        return cast(socket.socket, way.socket(port))

    def _resource(self, kind: ObjectKind) -> Any:
        from kubernetes.dynamic.exceptions import ResourceNotFoundError

        try:
            return self._dynamic.resources.get(api_version=kind.api, kind=kind.kind)
        except ResourceNotFoundError:
            raise Refused(f"the cluster has no {kind.kind} of {kind.api}: its controller is not installed", 0) from None


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors of the client's call as `Refused`, in one line that says what was called."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise Refused(f"Kubernetes: {what}: {_reason(error)}", error.status or 0) from error
    except (HTTPError, OSError) as error:
        raise Refused(f"Kubernetes: {what}: {getattr(error, 'reason', None) or error}", 0) from error


def _reason(error: Any) -> str:
    """What the server says, which is an object of its API if it is one's own."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status or ''} {error.reason}".strip()


def _name(thing: Object) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


def _configured(config: Any) -> str:
    """Load kubectl's configuration, or that of the pod that this process is in; its namespace.

    Raises
    ------
    UserError
        There is none.
    """
    try:
        config.load_kube_config()
        _, context = config.list_kube_config_contexts()
        return str(context["context"].get("namespace") or "default")
    except config.ConfigException as error:
        if not (_POD / "namespace").exists():
            raise UserError(f"no cluster of Kubernetes is configured: {error}; kubectl config view shows it") from None
    config.load_incluster_config()
    return (_POD / "namespace").read_text().strip()
