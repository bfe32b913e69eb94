"""Compose files and Dockerfile, against each other and against the programs; none is started.

`make test-containers` starts them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from coordinator import command as coordinator
from dbelief.cli.main import main
from dbelief.job import load_job
from dbelief.security.certificates import make_credentials
from ps_server import command as ps
from tests.deploy.dashboard import DEPLOY
from worker import command as worker

COMMANDS = {"coordinator": coordinator.command, "ps": ps.command, "worker": worker.command}
ROOT = DEPLOY.parent
ROLE = {"coordinator": "coordinator", "standby": "coordinator", "ps": "ps", "worker": "worker"}
"""Services of ours, and what they are."""
CONFINED = (*ROLE, "certs", "tool", "registry", "prometheus", "grafana")
SETTINGS = dict(
    line.split("=", 1) for line in (DEPLOY / ".env").read_text().splitlines() if "=" in line and line[0] != "#"
)


def _read(name: str) -> dict[str, Any]:
    """A compose file with the variables of deploy/.env in their places."""

    def value(found: re.Match[str]) -> str:
        assert found[1] in SETTINGS or found[2], f"{found[1]} is neither in deploy/.env nor asked for"
        return SETTINGS.get(found[1], "/asked/for")

    text = re.sub(r"(?<!\$)\$\{(\w+)(:\?[^}]*)?\}", value, (DEPLOY / name).read_text())
    read: dict[str, Any] = yaml.safe_load(text)
    return read


COMPOSE = _read("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = [(DEPLOY / name).read_text() for name in ("Dockerfile", "Dockerfile.gpu")]
SCRAPED: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml", "compose.s3.yaml"])
def test_compose_files_are_of_the_specification(name: str) -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    command = [str(check), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_services_restart_with_limited_privileges() -> None:
    assert set(SERVICES) == set(CONFINED)
    for name, service in SERVICES.items():
        assert service["restart"] == ("no" if name == "tool" else "on-failure:10"), name
        assert "mem_limit" in service, name
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/tmp" in service["tmpfs"], name
        assert ("cap_add" in service) == (name == "certs"), name
        assert "privileged" not in service, name
        assert "depends_on" not in service, f"{name}: a service waits by itself for what it needs"


def test_counts_are_the_job_files() -> None:
    job = load_job(ROOT / "examples" / SETTINGS["DBELIEF_JOB"], {"data.folder": "."})
    assert SERVICES["ps"]["scale"] == job.shards
    assert SERVICES["worker"]["scale"] == job.replicas


def test_published_ports_are_local() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) >= 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("service", ROLE)
def test_commands_have_the_options_they_are_given(service: str) -> None:
    program, name, *arguments = SERVICES[service]["command"]
    assert (program, name) == ("dbelief", ROLE[service])
    told = CliRunner().invoke(COMMANDS[name], ["--help"]).output
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    assert "--metrics" in options
    variables = [name for name in SERVICES[service]["environment"] if name not in ("DBELIEF_DATA", "DBELIEF_LOG")]
    assert [wanted for wanted in (*options, *variables) if wanted not in told] == []


def test_coordinators_differ_only_in_addresses() -> None:
    one, other = dict(SERVICES["coordinator"]), dict(SERVICES["standby"])
    assert other.pop("networks") == {"default": {"aliases": ["coordinator"]}}
    one.pop("ports", None), other.pop("ports", None)
    assert one == other
    assert "--once" in one["command"], "the one that comes second to a job that is over ends too"


def test_each_process_has_its_own_credentials_and_no_others() -> None:
    def mounted(service: str) -> list[str]:
        volumes = SERVICES[service].get("volumes", [])
        return [volume for volume in volumes if "credentials" in volume or volume.startswith("authority")]

    owners = {**ROLE, "tool": "operator", "prometheus": "prometheus", "registry": "registry"}
    for service in SERVICES:
        if service != "certs":
            wanted = [f"{owners[service]}-credentials:/credentials:ro"] if service in owners else []
            assert mounted(service) == wanted, service
    made = {volume.rpartition("/")[2] for volume in mounted("certs")}
    assert made == {"authority", *owners.values()}


def test_credentials_service_knows_all_roles(tmp_path: Path) -> None:
    make_credentials(tmp_path, 1, ["registry"], ["localhost"])
    rows = re.search(r"for row in (.*); do", SERVICES["certs"]["command"][0])
    assert rows
    users = dict(row.split(":") for row in rows[1].split())
    assert set(users) == {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"viewer"}
    for service, role in {"registry": "registry", "prometheus": "prometheus"}.items():
        assert SERVICES[service]["user"].partition(":")[0] == users[role]
    assert all(f"USER {users['worker']}" in text for text in DOCKERFILES)
    assert (tmp_path / "registry" / "registry.conf").is_file()
    assert SERVICES["registry"]["command"][1] == "/credentials/registry.conf"


def test_prometheus_finds_every_container_of_a_service() -> None:
    for config in SCRAPED["scrape_configs"]:
        (found,) = config["dns_sd_configs"]
        assert found["names"] == [config["job_name"]]
        assert f"--metrics=0.0.0.0:{found['port']}" in SERVICES[config["job_name"]]["command"]
        assert config["tls_config"]["server_name"] == f"{config['job_name']}.dbelief"
    assert [config["job_name"] for config in SCRAPED["scrape_configs"]] == list(COMMANDS)


def test_shards_and_coordinators_share_the_run_folders() -> None:
    def runs(service: str) -> list[str]:
        return [volume for volume in SERVICES[service]["volumes"] if volume.endswith(":/srv/runs")]

    assert runs("coordinator") == runs("ps") != []
    assert runs("worker") == []
    assert SERVICES["coordinator"]["volumes"][:2] == SERVICES["worker"]["volumes"][:2], (
        "data and model where it has them"
    )


def test_the_gpu_file_changes_services_that_there_are() -> None:
    override = _read("compose.gpu.yaml")["services"]
    assert set(override) == {"coordinator", "standby", "worker"}
    assert override["worker"]["build"]["dockerfile"] == "deploy/Dockerfile.gpu"


@pytest.mark.parametrize("text", DOCKERFILES, ids=["cpu", "gpu"])
def test_image_runs_unprivileged_and_forwards_signals(text: str) -> None:
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 1000:1000$", last, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["dbelief"\]$', last, re.MULTILINE)
    health = re.search(r"^HEALTHCHECK .* CMD \[(.*)\]$", last, re.MULTILINE)
    assert health
    command, *arguments = shlex.split(health[1].replace(",", " "))
    assert command == "dbelief"
    assert CliRunner().invoke(main, [*arguments, "--help"]).exit_code == 0
    caches = re.findall(r"(?:NUMBA_CACHE_DIR|MPLCONFIGDIR|CUPY_CACHE_DIR)=(\S+)", last)
    assert len(caches) >= 2
    assert all(cache.startswith("/tmp/") for cache in caches), "all else may be read-only"


def test_image_is_built_from_installed_files_only() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(kept) == sorted(
        [
            *("pyproject.toml", "README.md", "LICENSE", "dbelief", "coordinator", "ps_server", "worker"),
            *("deploy/packaging", "docs/__init__.py", "docs/how-to", "docs/explanation"),
        ]
    )
