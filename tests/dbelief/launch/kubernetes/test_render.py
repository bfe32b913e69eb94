"""Objects of twelve jobs, of each kind, against the API's schemas and against each other."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from dbelief.cli.kubernetes import access_command, render_command
from dbelief.errors import JobError, UserError
from dbelief.job import load_job, parse_job
from dbelief.launch.kubernetes.access import RULES
from dbelief.launch.kubernetes.description import MOST_BYTES, Description, Object, describe
from dbelief.launch.kubernetes.pods import CONFINED
from dbelief.launch.kubernetes.render import render, written

from .jobs import JOBS, job

KINDS = ("plain", "jobset", "trainjob")
CUSTOM = {
    "JobSet": "jobset.x-k8s.io_jobsets.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "ClusterTrainingRuntime": "trainer.kubeflow.org_clustertrainingruntimes.yaml",
}
"""Files of custom resource definitions, in the folder `crds` beside that of DBELIEF_DATA."""
VERSION = "1.34"
OFTEN = ("downpour", "followers", "store", "office")
each_job = pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in JOBS]
)
each_kind = pytest.mark.parametrize("kind", KINDS)


def _described(name: str, kind: str = "plain", **fields: Any) -> Description:
    script = ("/opt/train.sh", "--lr", "0.1") if name == "script" else ()
    return describe(job(name, kind=kind, **fields), None, script)


def _pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Pod templates with their roles."""
    for thing in _mappings(objects):
        if "containers" in thing.get("spec", {}):
            yield thing["metadata"]["labels"]["app.kubernetes.io/component"], thing


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(below)


@each_job
@each_kind
def test_objects_are_of_their_schemas(name: str, kind: str) -> None:
    objects = render(_described(name, kind))
    assert list(yaml.load_all(written(objects), yaml.CSafeLoader)) == objects
    checked = 0
    for thing in objects:
        if thing["kind"] not in CUSTOM:
            kubernetes_validate.validate(thing, VERSION, strict=True)
            checked += 1
    for spec in _jobs_within(objects):  # a JobSet's own schema leaves them to that of Job
        kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": spec}, VERSION)
    assert checked >= 2


@each_job
@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_custom_resources_are_of_their_definitions(name: str, kind: str) -> None:
    folder = Path(os.environ.get("DBELIEF_DATA", "missing")).parent / "crds"
    if not folder.is_dir():
        pytest.skip(f"no custom resource definitions in {folder}")
    custom = [thing for thing in render(_described(name, kind)) if thing["kind"] in CUSTOM]
    assert len(custom) == {"jobset": 1, "trainjob": 2}[kind]
    for thing in custom:
        definition = _definition(folder / CUSTOM[thing["kind"]])
        (version,) = (one for one in definition["versions"] if thing["apiVersion"].endswith(one["name"]))
        schema = version["schema"]["openAPIV3Schema"]
        jsonschema.Draft202012Validator(schema).validate(thing)
        assert list(_unknown(thing, schema, "")) == [], "a server would drop these fields"
        assert ("namespace" in thing["metadata"]) <= (definition["scope"] == "Namespaced")


@functools.cache
def _definition(file: Path) -> Any:
    return yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]


def _unknown(value: Any, schema: Any, where: str) -> Iterator[str]:
    """Fields that a structural schema does not have."""
    if isinstance(value, dict) and "properties" in schema and where != ".metadata":
        for key, below in value.items():
            if key not in schema["properties"]:
                yield f"{where}.{key}"
            else:
                yield from _unknown(below, schema["properties"][key], f"{where}.{key}")
    if isinstance(value, list):
        for number, below in enumerate(value):
            yield from _unknown(below, schema.get("items", {}), f"{where}[{number}]")


def _jobs_within(objects: list[Object]) -> Iterator[Object]:
    for thing in _mappings(objects):
        for replicated in thing.get("replicatedJobs", ()):
            yield replicated["template"]["spec"]


@each_job
@each_kind
def test_pods_keep_to_the_restricted_profile(name: str, kind: str) -> None:
    roles = []
    for role, pod in _pods(render(_described(name, kind))):
        roles.append(role)
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == CONFINED
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted - {"data"} == {volume["name"] for volume in spec["volumes"]} - {"data"}
        secrets = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
        assert secrets == [f"job-{name}-dbelief-{role}"], "its own and nobody else's"
    own = [] if name == "office" else ["registry"]
    assert sorted(roles) == sorted(["coordinator", "ps", "worker", *own])


@each_job
@each_kind
def test_counts_are_those_of_the_job(name: str, kind: str) -> None:
    described = _described(name, kind)
    shards, workers = described.job.shards * described.job.replication, described.job.replicas
    objects = render(described)
    if kind == "plain":
        counts = {t["metadata"]["name"]: t["spec"].get("replicas") for t in objects if "replicas" in t.get("spec", {})}
        assert counts[f"job-{name}-ps"] == shards
        assert counts[f"job-{name}-worker"] == workers
        assert objects[-1]["spec"]["parallelism"] == 2
    else:
        replicated = {r["name"]: r["template"]["spec"] for t in _mappings(objects) for r in t.get("replicatedJobs", ())}
        members = "worker" if kind == "jobset" else "node"
        for role, count in (("ps", shards), (members, workers)):
            assert (replicated[role]["parallelism"], replicated[role]["completions"]) == (count, count)
        assert "completions" not in replicated["coordinator"], "success is that of the coordinator that leads"
    for text in (t["data"]["job.yaml"] for t in objects if t["kind"] == "ConfigMap"):
        assert parse_job(text, Path("/srv/job"), "job.yaml") == described.job


@each_kind
def test_only_the_jobs_own_end_fails_it_and_members_restart_alone(kind: str) -> None:
    objects = render(_described("downpour", kind))
    (coordinator,) = (pod for role, pod in _pods(objects) if role == "coordinator")
    assert coordinator["spec"]["restartPolicy"] == "Never", "as podFailurePolicy demands"
    assert "--on-signal=leave" in coordinator["spec"]["containers"][0]["args"]
    (rules,) = (t["podFailurePolicy"]["rules"] for t in _mappings(objects) if "podFailurePolicy" in t)
    failing, ignoring = rules
    assert failing == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "coordinator", "operator": "In", "values": [1, 2, 3]},
    }
    assert ignoring["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    if kind != "plain":
        (whole,) = (t for t in _mappings(objects) if "successPolicy" in t)
        assert whole["successPolicy"]["targetReplicatedJobs"] == ["coordinator"]
        policies = {rule["action"]: rule["targetReplicatedJobs"] for rule in whole["failurePolicy"]["rules"]}
        names = {replicated["name"] for replicated in whole["replicatedJobs"]}
        assert policies["FailJobSet"] == ["coordinator"]
        assert set(policies["RestartJobAndIgnoreMaxRestarts"]) == names - {"coordinator"}


def test_gpus_store_and_spot_nodes() -> None:
    (worker,) = (pod["spec"] for role, pod in _pods(render(_described("gpus"))) if role == "worker")
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert worker["tolerations"][0]["key"] == "nvidia.com/gpu"
    for role, pod in _pods(render(_described("store"))):
        claims = [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        assert claims == [], "no pod needs the claim of run folders"
        if role != "registry":
            assert pod["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "aws"}}]
            assert pod["spec"]["serviceAccountName"] == "trainer"
    for role, pod in _pods(render(_described("office"))):
        needs = pod["spec"]["affinity"]["nodeAffinity"]
        assert ("requiredDuringSchedulingIgnoredDuringExecution" in needs) == (role != "worker")
        assert pod["spec"]["terminationGracePeriodSeconds"] == 25
        if role == "coordinator":
            assert {"name": "DBELIEF_REGISTRY", "value": "rediss://elsewhere:6379"} in pod["spec"]["containers"][0][
                "env"
            ]


@pytest.mark.parametrize("by", ["hpa", "keda"])
def test_workers_are_scaled_by_leases_left_and_applying_sets_no_number(by: str) -> None:
    objects = render(_described("downpour", scale={"by": by, "least": 2, "most": 9, "leases": 5}))
    (worker,) = (t for t in objects if t["kind"] == "Deployment")
    assert "replicas" not in worker["spec"]
    (scaler,) = (t for t in objects if t["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"))
    spec = scaler["spec"]
    assert spec["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    if by == "hpa":
        kubernetes_validate.validate(scaler, VERSION, strict=True)
        assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
        assert spec["metrics"][0]["external"]["target"] == {"type": "AverageValue", "averageValue": "5"}
    else:
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 9)
        assert "dbelief_coordinator_lease_backlog" in spec["triggers"][0]["metadata"]["query"]


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_kueue_admits_the_job_as_a_whole(kind: str) -> None:
    *objects, main = render(_described("downpour", kind, queue="users"))
    assert main["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "users"
    assert all("kueue.x-k8s.io/queue-name" not in thing["metadata"]["labels"] for thing in objects)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"queue": "users"}, r"kubernetes\.queue: needs kind jobset or trainjob"),
        ({"kind": "jobset", "scale": {}}, r"kubernetes\.scale: needs kind plain: the numbers of a jobset are fixed"),
        ({"scale": {"least": 3, "most": 2}}, r"kubernetes\.scale\.most: must be at least `least`, 3, not 2"),
        ({"image": 3}, r"kubernetes\.image: must be"),
        ({"runs": "Not_A_Name"}, r"kubernetes\.runs: must be a name of Kubernetes"),
    ],
)
def test_sections_that_no_cluster_can_have_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        job("downpour", **fields)


def test_files_that_pods_cannot_have_are_refused(tmp_path: Path) -> None:
    model = "model: {python: 'models/net.py:make'}\ndata: {source: digits}"
    rest = "name: a\nstrategy: {name: downpour, batch: 16, rule: {name: sgd, rate: 0.1}}\nlimits: {epochs: 1}\n"
    with pytest.raises(UserError, match=r"models/net\.py: is not in the folder of the job file"):
        describe(parse_job(model + "\n" + rest, tmp_path, "job.yaml"))
    near = parse_job(model.replace("models/", "") + "\n" + rest, tmp_path, "job.yaml")
    with pytest.raises(UserError, match=r"net\.py: No such file"):
        describe(near)
    (tmp_path / "net.py").write_text("x" * MOST_BYTES)
    with pytest.raises(UserError, match=r"together above 1,000,000 bytes"):
        describe(near)
    (tmp_path / "net.py").write_text("def make(): ...")
    assert describe(near).files["net.py"] == "def make(): ..."
    with pytest.raises(UserError, match="prefix 'A!': names of Services"):
        describe(near, "A!")


def test_the_committed_objects_are_those_of_the_job_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBELIEF_DATA", "")
    base = Path(__file__).parents[4] / "deploy" / "kubernetes" / "base"
    described = describe(load_job(base / "job.yaml"), "")
    assert (base / "objects.yaml").read_text() == written(render(described)), "`make manifests` makes them anew"


def test_commands_print_yaml_and_errors_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(job("downpour").to_yaml())
    done = CliRunner().invoke(render_command, [str(file), "--set", "kubernetes.kind=jobset", "--prefix", "mine-"])
    assert done.exit_code == 0, done.output
    printed = list(yaml.safe_load_all(done.output))
    assert [thing["kind"] for thing in printed] == ["ConfigMap", "Service", "Service", "JobSet"]
    assert printed[-1]["metadata"]["name"] == "mine"
    refused = CliRunner().invoke(render_command, [str(file), "--set", "kubernetes.queue=users"])
    assert refused.exit_code == 2
    role = yaml.safe_load(CliRunner().invoke(access_command, ["--namespace", "lab"]).output)
    kubernetes_validate.validate(role, VERSION, strict=True)
    assert role["metadata"] == {"name": "dbelief-launcher", "namespace": "lab"}
    assert len(role["rules"]) == len(RULES)
    assert not [rule for rule in role["rules"] if "*" in rule["verbs"] or "*" in rule["resources"]]
