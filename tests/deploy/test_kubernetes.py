"""The overlays of deploy/kubernetes, against the API's schemas and the programs."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from coordinator import command as coordinator
from dbelief.job import parse_job
from ps_server import command as ps
from tests.deploy.dashboard import DEPLOY
from worker import command as worker

pytestmark = pytest.mark.deploy

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("base", "overlays/local", "overlays/gpu", "overlays/spot", "overlays/s3")
COMMANDS = {"coordinator": coordinator.command, "ps": ps.command, "worker": worker.command}
WORKLOADS = ("Deployment", "Job", "StatefulSet")
Manifest = dict[str, Any]


@functools.cache
def _text(overlay: str) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    command = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return done.stdout


def _manifests(overlay: str) -> list[Manifest]:
    return list(yaml.safe_load_all(_text(overlay)))


def _of(overlay: str, *kinds: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"]: m for m in _manifests(overlay) if m["kind"] in kinds}


def _pod(manifest: Manifest) -> Manifest:
    pod: Manifest = manifest["spec"]["template"]["spec"]
    return pod


def _job_volume(overlay: str) -> str:
    """Name of the ConfigMap that pods have as their job: with its content's hash, where an overlay made it."""
    volumes = _pod(_of(overlay, "Job")["coordinator"])["volumes"]
    return str(next(volume["configMap"]["name"] for volume in volumes if volume["name"] == "job"))


each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@each_overlay
def test_every_manifest_is_of_its_schema(overlay: str) -> None:
    validate = Path(sys.executable).with_name("kubernetes-validate")
    command = [str(validate), "--strict", "-"]
    done = subprocess.run(command, input=_text(overlay), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(_manifests(overlay))


@each_overlay
def test_pods_keep_to_the_restricted_profile(overlay: str) -> None:
    for name, manifest in _of(overlay, *WORKLOADS).items():
        pod = _pod(manifest)
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
            assert container["securityContext"] == {**confined, "capabilities": {"drop": ["ALL"]}}, name
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name


@each_overlay
def test_manifests_reference_only_existing_objects(overlay: str) -> None:
    claims, maps = _of(overlay, "PersistentVolumeClaim"), _of(overlay, "ConfigMap")
    for name, manifest in _of(overlay, *WORKLOADS).items():
        pod = _pod(manifest)
        if manifest["kind"] != "Job":  # whose selector Kubernetes makes itself
            selected = manifest["spec"]["selector"]["matchLabels"]
            assert selected.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
        templates = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == volumes.keys() | templates, name
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, name
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, name
            if "secret" in volume:
                assert volume["secret"]["secretName"] == f"dbelief-{name}", f"{name}: its own and nobody else's"
    assert _of(overlay, "Secret") == {}, "a secret is made of `dbelief certs`, and committed nowhere"


@each_overlay
def test_commands_have_the_options_they_are_given(overlay: str) -> None:
    workloads = _of(overlay, *WORKLOADS)
    for role, command in COMMANDS.items():
        (container,) = _pod(workloads[role])["containers"]
        told = CliRunner().invoke(command, ["--help"]).output
        first, *arguments = container["args"]
        assert first == role
        options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
        assert {"--metrics", "--on-signal" if role == "coordinator" else "--at-end"} <= set(options)
        own = ("DBELIEF_DATA", "POD_NAME", "POD_NUMBER")
        variables = [variable["name"] for variable in container["env"] if variable["name"] not in own]
        assert [wanted for wanted in (*options, *variables) if wanted not in told] == []


@each_overlay
def test_there_are_as_many_shards_as_the_job_has(overlay: str) -> None:
    (job,) = (m for name, m in _of(overlay, "ConfigMap").items() if name in ("job", _job_volume(overlay)))
    read = parse_job(job["data"]["job.yaml"].replace("${DBELIEF_DATA}", "/srv/data"), Path("/srv/job"), overlay)
    workloads = _of(overlay, *WORKLOADS)
    assert workloads["ps"]["spec"]["replicas"] == read.shards
    assert workloads["worker"]["spec"]["replicas"] >= read.replicas
    assert workloads["coordinator"]["spec"]["parallelism"] == 2


@each_overlay
def test_network_policies_allow_only_intended_callers(overlay: str) -> None:
    policies = _of(overlay, "NetworkPolicy")
    nothing = policies.pop("nothing")["spec"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}

    def called_by(name: str, port: int) -> set[str]:
        found = set()
        for rule in policies[name]["spec"].get("ingress", []):
            if any(entry["port"] <= port <= entry.get("endPort", entry["port"]) for entry in rule["ports"]):
                for peer in rule["from"]:
                    selector = peer["podSelector"]
                    labels = selector.get("matchLabels", {})
                    found |= set(labels.values())
                    for expression in selector.get("matchExpressions", []):
                        found |= set(expression["values"])
        return found

    assert called_by("ps", 7071) == {"coordinator", "worker", "ps"}
    assert called_by("ps", 40_000) == {"worker"}, "direct streams"
    assert called_by("coordinator", 7070) == {"ps", "worker"}
    assert called_by("worker", 7072) == {"worker"}
    assert called_by("registry", 6379) == {"coordinator"}
    assert {name for name in COMMANDS if called_by(name, 9100) == {"prometheus"}} == set(COMMANDS)


def test_spot_nodes_have_workers_alone() -> None:
    workloads = _of("overlays/spot", *WORKLOADS)
    for name in ("coordinator", "ps", "registry"):
        terms = _pod(workloads[name])["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert all(
            e["operator"] in ("NotIn", "DoesNotExist") for e in terms["nodeSelectorTerms"][0]["matchExpressions"]
        )
    assert _pod(workloads["worker"])["priorityClassName"] in _of("overlays/spot", "PriorityClass")


def test_gpu_workers_ask_for_a_device_and_the_job_for_cuda() -> None:
    workloads = _of("overlays/gpu", *WORKLOADS)
    (container,) = _pod(workloads["worker"])["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "DBELIEF_SET", "value": "device=cuda"} in _pod(workloads["coordinator"])["containers"][0]["env"]
