"""kmock's emulated API server with what it lacks: apply, dry runs, labels, owners, logs and forwarded ports."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import aiohttp
import kmock
import yaml
from aiohttp import web

NAMESPACE = "default"
CUSTOM = {
    "jobset.x-k8s.io/v1alpha2/jobsets": "JobSet",
    "trainer.kubeflow.org/v1alpha1/trainjobs": "TrainJob",
    "trainer.kubeflow.org/v1alpha1/clustertrainingruntimes": "ClusterTrainingRuntime",
    "keda.sh/v1alpha1/scaledobjects": "ScaledObject",
}
"""Resources of controllers that a cluster may have."""
Thing = dict[str, Any]


class Call(NamedTuple):
    """A call of a client that changes or reads something: verb, API group, resource, name."""

    verb: str
    group: str
    resource: str
    name: str


class ApiServer(kmock.KubernetesEmulator):  # type: ignore[misc, unused-ignore]
    """The server; `pods`: what runs them, which has their logs and ports."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.logs: dict[str, Path] = {}  # by pod
        self.ports: dict[tuple[str, int], int] = {}  # of loopback, by pod and its own port
        self._uids = itertools.count(1)
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of importlib, for kmock
            self.resources.load_bundled()
        for name, kind in CUSTOM.items():
            verbs = {"create", "delete", "get", "list", "patch"}
            described: Any = {"kind": kind, "namespaced": kind != "ClusterTrainingRuntime", "verbs": verbs}
            self.resources[name] = described

    async def _handle(self, request: Any) -> web.StreamResponse:
        if request.url.path == "/api/v1":  # kmock has the group's slash in it, which kubectl refuses
            return web.json_response({**await self._serve_version(request), "groupVersion": "v1"})
        if request.resource is None or not request.resource.plural:
            return cast(web.StreamResponse, await super()._handle(request))
        verb = _verb(request)
        resource = "/".join(filter(None, [request.resource.plural, request.subresource]))
        name = request.name or (request.data or {}).get("metadata", {}).get("name", "")
        self.calls.append(Call(verb, request.resource.group, resource, name))
        if request.subresource == "log":
            return self._log(request)
        if request.subresource == "portforward":
            return await self._forward(request)
        if verb == "create":
            self._new(request.data)
        if verb == "patch":
            return self._patched(request)
        if verb == "list":
            return self._listed(request)
        return cast(web.StreamResponse, await super()._handle(request))

    # -- verbs ------------------------------------------------------------------------------------------

    def _new(self, thing: Thing) -> None:
        number = next(self._uids)
        thing["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number), "namespace": NAMESPACE}

    def _patched(self, request: Any) -> web.StreamResponse:
        """Merge or apply; an object that is not there is created by apply alone."""
        key = (request.resource, request.namespace, request.name)
        applies = "apply" in request.headers.get("Content-Type", "")
        fields = yaml.safe_load(request.body) if applies else json.loads(request.body)
        there = key in self.objects and not self.objects[key].deleted
        if not there and not applies:
            raise kmock.KubernetesObjectNotFoundError()
        merged = _merged(copy.deepcopy(self.objects[key].raw) if there else {}, fields)
        if not there:
            self._new(merged)
        elif merged != self.objects[key].raw:
            merged["metadata"]["resourceVersion"] = str(next(self._uids))
        if request.params.get("dryRun") != "All":
            if there and not self.objects[key].deleted:
                self.objects[key].patch(_cleared(self.objects[key].raw, merged))
            else:
                self.objects[key] = merged
        return web.json_response(merged, status=200 if there else 201)

    def _listed(self, request: Any) -> web.StreamResponse:
        wanted = dict(part.split("=") for part in request.params.get("labelSelector", "").split(",") if part)
        found = [
            thing
            for (resource, namespace, _), thing in self.objects.items()
            if resource == request.resource and namespace == request.namespace and not thing.deleted
        ]
        items = [thing.raw for thing in found if wanted.items() <= thing.raw["metadata"].get("labels", {}).items()]
        kind = self.resources[request.resource].kind
        return web.json_response({"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": items})

    def _log(self, request: Any) -> web.StreamResponse:
        lines = self.logs[request.name].read_text(errors="replace").splitlines()
        return web.Response(text="\n".join(lines[-int(request.params.get("tailLines", 10**6)) :]) + "\n")

    async def _forward(self, request: Any) -> web.StreamResponse:
        """The port's bytes on channel 0 of a WebSocket, errors on 1; each begins with the port's number."""
        port = int(request.params["ports"])
        answer = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await answer.prepare(request._raw_request)
        for channel in (0, 1):
            await answer.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[request.name, port])
        except OSError as error:
            await answer.send_bytes(b"\x01" + str(error).encode())
            return answer
        back = asyncio.ensure_future(_to_client(reader, answer))
        async for message in answer:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x00":
                writer.write(message.data[1:])
                await writer.drain()
        back.cancel()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return answer

    # -- for controllers --------------------------------------------------------------------------------

    def things(self, plural: str) -> Iterator[tuple[Any, Thing]]:
        """Objects of a resource that are there, with their keys."""
        for key, thing in list(self.objects.items()):
            if key[0].plural == plural and not thing.deleted:
                yield key, thing.raw

    def change(self, resource: str, thing: Thing) -> None:
        """Make an object, or change its fields."""
        key = (kmock.resource(resource), NAMESPACE, thing["metadata"]["name"])
        if key in self.objects and not self.objects[key].deleted:
            self.objects[key].patch(thing)
        else:
            self._new(thing)
            self.objects[key] = thing

    def remove(self, key: Any) -> None:
        """Remove an object."""
        self.objects[key].delete()


class Served:
    """The server on a thread with a loop of its own; to be used in a `with` block."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self._url: Future[str] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="api server")

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._url.result(30)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _serve(self) -> None:
        async with self.api, kmock.Server(self.api, host="127.0.0.1") as server:
            self._url.set_result(str(server.url))
            while not self._stop.is_set():
                await asyncio.sleep(0.05)


@contextmanager
def kubeconfig(url: str, folder: Path) -> Iterator[dict[str, str]]:
    """The variable that leads clients to a server."""
    file = folder / "kubeconfig"
    cluster = {"name": "emulated", "cluster": {"server": url.rstrip("/")}}
    context = {"name": "emulated", "context": {"cluster": "emulated", "user": "nobody", "namespace": NAMESPACE}}
    named = {"clusters": [cluster], "contexts": [context], "users": [{"name": "nobody", "user": {}}]}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "emulated", **named}))
    yield {"KUBECONFIG": str(file)}


def _verb(request: Any) -> str:
    if request.method.value.upper() == "GET":
        return "get" if request.name or request.subresource else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}[request.method.value.upper()]


def _merged(old: Any, new: Any) -> Any:
    """RFC 7386: mappings are merged, null removes; a list is replaced."""
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _cleared(old: Mapping[str, Any], new: Mapping[str, Any]) -> Thing:
    """A patch that makes the old one the new one, also where keys are gone."""
    return {**new, **dict.fromkeys(old.keys() - new.keys())}


async def _to_client(reader: asyncio.StreamReader, answer: web.WebSocketResponse) -> None:
    while data := await reader.read(1 << 16):
        await answer.send_bytes(b"\x00" + data)
    await answer.close()
