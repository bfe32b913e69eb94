"""What the files in deploy/ say, held against each other and against the programs; nothing is started."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from coordinator import command as coordinator
from dbelief.cli import main
from dbelief.collectors import TABLE
from ps_server import command as ps
from tests.deploy.dashboard import DEPLOY, expressions, panels
from worker import command as worker

COMMANDS = {"coordinator": coordinator.command, "ps": ps.command, "worker": worker.command}
OURS = tuple(COMMANDS)
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SCRAPED: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())


def _names() -> set[str]:
    """Every name in Prometheus that TABLE makes."""
    endings = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        f"dbelief_{role}_{row.name}{ending}"
        for role, rows in TABLE.items()
        for row in rows
        for ending in endings[row.kind]
    }


def _plain(text: str) -> str:
    """Compose's own variables at their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_the_dashboard_asks_for_nothing_that_no_process_tells() -> None:
    asked = {
        name for several in expressions().values() for one in several for name in re.findall(r"\bdbelief_\w+", one)
    }
    assert len(asked) > 20
    assert asked <= _names()


def test_the_dashboard_shows_what_people_ask_about_a_job() -> None:
    asked = {
        name for several in expressions().values() for one in several for name in re.findall(r"\bdbelief_\w+", one)
    }
    wanted = {
        "worker": "samples_total staleness_bucket phase_seconds_total",
        "ps": "pushes_total pulls_total bytes_total apply_seconds_bucket staleness_bucket refused_total "
        "duplicates_total snapshot_age_seconds",
        "coordinator": "samples_total loss validation_accuracy members members_lost_total pushes_lost_total "
        "pushes_twice_total",
    }
    assert {f"dbelief_{role}_{name}" for role, names in wanted.items() for name in names.split()} <= asked


def test_panels_fill_a_grid_without_overlap() -> None:
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_the_dashboards_source_is_the_one_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/job.yaml").read_text())["providers"]
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == SCRAPED["global"]["scrape_interval"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert {"/etc/grafana/provisioning", provider["options"]["path"]} == set(mounted)


def test_every_service_is_there_and_starts_again() -> None:
    assert set(SERVICES) == {"registry", *OURS, "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert service["restart"].startswith("on-failure"), name
        assert "mem_limit" in service, name
        assert "depends_on" not in service, f"{name}: a service waits by itself for what it needs"
    assert (_plain(SERVICES["ps"]["scale"]), _plain(SERVICES["worker"]["scale"])) == ("2", "3")
    assert SERVICES["registry"]["command"][-4:] == ["--appendfsync", "always", "--dir", "/data"]


def test_only_this_machine_reaches_what_is_published() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("role", OURS)
def test_commands_have_the_options_they_are_given(role: str) -> None:
    name, *arguments = map(_plain, SERVICES[role]["command"])
    assert name == role
    told = CliRunner().invoke(COMMANDS[role], ["--help"]).output
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    assert "--metrics" in options
    assert [option for option in options if option not in told] == []
    assert ("DBELIEF_LISTEN" in told) == ("DBELIEF_LISTEN" in SERVICES[role]["environment"])


def test_prometheus_finds_every_container_of_a_service() -> None:
    for config in SCRAPED["scrape_configs"]:
        (found,) = config["dns_sd_configs"]
        assert found["names"] == [config["job_name"]]
        assert f"--metrics=0.0.0.0:{found['port']}" in SERVICES[config["job_name"]]["command"]
    assert [config["job_name"] for config in SCRAPED["scrape_configs"]] == list(OURS)


def test_shards_and_coordinator_share_the_run_folders() -> None:
    def runs(service: str) -> list[str]:
        return [volume for volume in SERVICES[service]["volumes"] if volume.endswith(":/srv/runs")]

    assert runs("coordinator") == runs("ps") != []
    assert runs("worker") == []
    assert SERVICES["coordinator"]["volumes"][:2] == SERVICES["worker"]["volumes"], "data and model where it has them"


def test_the_image_is_no_roots_and_signals_reach_the_process() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER dbelief$", last, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["dbelief"\]$', last, re.MULTILINE)
    health = re.search(r"^HEALTHCHECK .* CMD \[(.*)\]$", last, re.MULTILINE)
    assert health
    command, *arguments = shlex.split(health[1].replace(",", " "))
    assert command == "dbelief"
    assert CliRunner().invoke(main, [*arguments, "--help"]).exit_code == 0


def test_the_image_is_built_from_what_is_installed() -> None:
    kept = [line[1:] for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(kept) == sorted(
        ["pyproject.toml", "README.md", "LICENSE", "dbelief", "coordinator", "ps_server", "worker"]
    )
