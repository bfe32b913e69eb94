"""The controllers of a cluster: Jobs, StatefulSets, Deployments and JobSets have their pods, owners their objects."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any, Self

from .api_server import Served, kubeconfig
from .pod_process import PodProcess, Thing
from .services import RegistryPod, ServicePort

LOOK_S = 0.1
COMPONENT, INDEX = "app.kubernetes.io/component", "apps.kubernetes.io/pod-index"
COMPLETION = "batch.kubernetes.io/job-completion-index"

OWNED = (
    *("jobs", "jobsets", "configmaps", "secrets", "services", "statefulsets", "deployments"),
    *("poddisruptionbudgets", "horizontalpodautoscalers", "scaledobjects"),
)


class EmulatedCluster:
    """A cluster whose pods are processes of this host; to be used in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claims = folder / "claims"
        self._served = Served()
        self.api = self._served.api
        self.pods: dict[str, PodProcess] = {}
        self._owners: dict[str, str] = {}  # of pods: the object that has them
        self._registries: dict[str, RegistryPod] = {}
        self._leaders: dict[str, ServicePort] = {}  # by name of the Service
        self._made = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._control, name="controllers")
        self.errors: list[BaseException] = []

    def __enter__(self) -> Self:
        self._served.__enter__()
        self.folder.mkdir(parents=True, exist_ok=True)
        with kubeconfig(self._served.url, self.folder) as self.environment:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for pod in self.pods.values():
            pod.kill()
        for registry in self._registries.values():
            registry.kill()
        for service in self._leaders.values():
            service.close()
        self._served.__exit__()

    def of(self, component: str) -> list[PodProcess]:
        """The pods of a role."""
        return [pod for pod in list(self.pods.values()) if pod.pod["metadata"]["labels"][COMPONENT] == component]

    def _control(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._collect()
                for plural, step in (
                    ("statefulsets", self._stateful_set),  # the registry, before who needs its port
                    ("jobs", self._job),
                    ("jobsets", self._job_set),
                    ("deployments", self._deployment),
                ):
                    for _, thing in list(self.api.things(plural)):
                        step(thing)
                self._show()
            except BaseException as error:  # for the test, which looks at it at its end
                self.errors.append(error)
                raise

    # -- controllers ------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Remove what is owned by nothing that is there."""
        found = [(key, thing) for kind in OWNED for key, thing in self.api.things(kind)]
        there = {thing["metadata"]["uid"] for _, thing in found}
        for key, thing in found:
            owners = thing["metadata"].get("ownerReferences", ())
            if owners and not {owner["uid"] for owner in owners} & there:
                self.api.remove(key)
        names = {thing["metadata"]["name"] for _, thing in found}
        for name, owner in list(self._owners.items()):
            if owner not in names:
                self._end(name)
        for name in [name for name in self._registries if name not in names]:
            self._registries.pop(name).kill()

    def _job(self, job: Thing) -> None:
        """Coordinators: as many as run beside each other, until one has succeeded, or the job has failed."""
        end = self._coordinators(job["metadata"]["name"], job["spec"])
        if end is not None and not job.get("status", {}).get("conditions"):
            self._finish("batch/v1/jobs", job, "Complete" if end == 0 else "Failed")

    def _job_set(self, jobs: Thing) -> None:
        if jobs["spec"].get("suspend"):
            return
        name = jobs["metadata"]["name"]
        end: int | None = None
        for replicated in jobs["spec"]["replicatedJobs"]:
            spec, own = replicated["template"]["spec"], f"{name}-{replicated['name']}-0"
            self._owners = {pod: name if owner == own else owner for pod, owner in self._owners.items()}
            if replicated["name"] == "coordinator":
                end = self._coordinators(name, spec, own)
            elif replicated["name"] == "registry":
                self._registry(spec["template"], name)
            elif not jobs.get("status", {}).get("conditions"):
                self._members(name, own, spec["template"], spec["parallelism"], COMPLETION)
        if end is not None and not jobs.get("status", {}).get("conditions"):
            self._finish("jobset.x-k8s.io/v1alpha2/jobsets", jobs, "Completed" if end == 0 else "Failed")

    def _coordinators(self, owner: str, spec: Thing, prefix: str = "") -> int | None:
        """Keep the pods of a Job; exit code of the one that ended it, if one has."""
        if spec.get("suspend") or not self._has_registry(spec["template"]):
            return None
        mine = [pod for pod in self.of("coordinator") if self._owners[pod.name] == owner]
        (rule, _) = spec["podFailurePolicy"]["rules"]
        for pod in mine:
            pod.look()
        codes = [pod.code for pod in mine if pod.code is not None]
        failed = next((code for code in codes if code in rule["onExitCodes"]["values"]), None)
        active = [pod for pod in mine if pod.code is None]
        if failed is not None:
            for pod in active:
                pod.terminate()
            return failed
        if 0 in codes:
            return 0 if not active else None
        while len(active) < spec["parallelism"]:
            self._made += 1
            name = f"{prefix or owner}-{self._made:05x}"
            active.append(self._begin(name, owner, spec["template"], {}))
        return None

    def _stateful_set(self, thing: Thing) -> None:
        spec = thing["spec"]
        if spec["template"]["metadata"]["labels"][COMPONENT] == "registry":
            self._registry(spec["template"], thing["metadata"]["name"])
        else:
            self._members(
                thing["metadata"]["name"], thing["metadata"]["name"], spec["template"], spec["replicas"], INDEX
            )

    def _deployment(self, thing: Thing) -> None:
        name, spec = thing["metadata"]["name"], thing["spec"]
        self._members(name, f"{name}-7d4b9c", spec["template"], spec["replicas"], INDEX)

    def _members(self, owner: str, prefix: str, template: Thing, count: int, index: str) -> None:
        """Keep so many pods, whose containers are started again when they end; end those above."""
        service = template["spec"]["containers"][0]["args"][1].partition("=")[2]
        if service not in self._leaders or template["spec"]["volumes"] == []:
            return
        for number in range(count):
            name = f"{prefix}-{number}"
            if name not in self.pods:
                self._begin(name, owner, template, {index: str(number)})
            pod = self.pods[name]
            pod.look()
            if pod.code is not None and not (index == COMPLETION and pod.code == 0):  # code 0 completes an index
                pod.start()
        for name in [name for name in self.pods if name.startswith(f"{prefix}-")]:
            if int(name.rpartition("-")[2]) >= count:
                pod = self.pods[name]
                pod.look()
                pod.terminate()
                if pod.code is not None:
                    self._end(name)

    # -- pods -------------------------------------------------------------------------------------------

    def _begin(self, name: str, owner: str, template: Thing, numbers: dict[str, str]) -> PodProcess:
        pod = copy.deepcopy(template)
        pod["metadata"]["labels"] |= numbers
        pod["metadata"]["annotations"] = numbers
        service = f"{pod['metadata']['labels']['app.kubernetes.io/instance']}-coordinator:7070"
        if pod["metadata"]["labels"][COMPONENT] == "coordinator" and service not in self._leaders:
            self._leaders[service] = ServicePort(lambda: self._leader_port(service))
        at = {service: self._leaders[service].port}
        for thing, registry in self._registries.items():
            at[f"{thing if thing.endswith('registry') else thing + '-registry'}:6379"] = registry.service.port
        self._made += 1  # a name may be that of a pod that is gone
        folder = self.folder / "pods" / f"{name}.{self._made}"
        made = PodProcess(name, pod, folder, self.claims, self._find, at)
        self.pods[name], self._owners[name] = made, owner
        self.api.logs[name] = made.log
        self.api.ports |= {(name, own): port for own, port in made.ports.items()}
        metadata = {"name": name, "labels": pod["metadata"]["labels"]}
        self.api.change("v1/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})
        return made

    def _end(self, name: str) -> None:
        self.pods.pop(name).kill()
        del self._owners[name]
        for key, thing in list(self.api.things("pods")):
            if thing["metadata"]["name"] == name:
                self.api.remove(key)

    def _show(self) -> None:
        for name, pod in list(self.pods.items()):
            self.api.change("v1/pods", {"metadata": {"name": name}, "status": pod.status()})

    def _leader_port(self, service: str) -> int | None:
        instance = service.removesuffix("-coordinator:7070")
        for pod in self.of("coordinator"):
            mine = pod.pod["metadata"]["labels"]["app.kubernetes.io/instance"] == instance
            if mine and pod.ready and pod.code is None:
                return pod.ports[7070]
        return None

    def _registry(self, template: Thing, name: str) -> None:
        if name not in self._registries:
            secret = template["spec"]["volumes"][0]["secret"]["secretName"]
            self._registries[name] = RegistryPod(
                self._find("secrets", secret), self.folder / f"registry-{name}-{self._made}"
            )
            self._made += 1

    def _has_registry(self, template: Thing) -> bool:
        """Whether the registry that a coordinator names is there, whose port it is given at its start."""
        (container,) = template["spec"]["containers"]
        (url,) = (entry["value"] for entry in container["env"] if entry["name"] == "DBELIEF_REGISTRY")
        instance = template["metadata"]["labels"]["app.kubernetes.io/instance"]
        return f"{instance}-registry" not in url or bool({instance, f"{instance}-registry"} & self._registries.keys())

    def _find(self, plural: str, name: str) -> Thing:
        return next(thing for _, thing in self.api.things(plural) if thing["metadata"]["name"] == name)

    def _finish(self, resource: str, thing: Thing, condition: str) -> None:
        self._show()  # a controller reads ends of pods from the API, so they are there before the job's
        status: dict[str, Any] = {"conditions": [{"type": condition, "status": "True", "message": "emulated"}]}
        self.api.change(resource, {"metadata": {"name": thing["metadata"]["name"]}, "status": status})
