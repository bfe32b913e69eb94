import ast
import functools
import gc
import itertools
import math
import re
import shutil
import socket
import threading
import urllib.request
import weakref
from pathlib import Path
from typing import get_type_hints

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dbelief.errors import UserError
from dbelief.process.terminal.console import host_and_port
from dbelief.telemetry.metric_specs import PHASES, STATES, TABLE
from dbelief.telemetry.metrics import LONGEST_LABEL, MOST_SERIES, OTHERS, Metrics


def test_table_and_attributes_are_the_same_list() -> None:
    annotated = {name: hint.__name__.lower() for name, hint in get_type_hints(Metrics).items()}
    assert annotated == {row.name: row.kind for rows in TABLE.values() for row in rows}


@pytest.mark.parametrize(
    ("role", "program"), [("ps", "ps_server"), *[(name, name) for name in ("worker", "coordinator")]]
)
def test_a_program_uses_its_own_metrics_and_all_of_them(role: str, program: str) -> None:
    root, listed = Path(__file__).parents[3], {row.name for row in TABLE[role]}
    texts = [path.read_text() for path in [*(root / program).rglob("*.py"), root / "dbelief/telemetry/metrics.py"]]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in nodes if ast.unparse(node.value).endswith("metrics")}
    assert {name for name in used if not hasattr(Metrics, name)} <= listed
    assert [name for name in listed if not any(re.search(rf"\b{name}\b", text) for text in texts)] == []


@pytest.mark.parametrize("seen", [[], [3], [0, 4, 4, 5, 1000], [64] * 6])
def test_observations_together_count_as_one_after_another(seen: list[int]) -> None:
    together, single = Metrics("ps"), Metrics("ps")
    together.staleness.observe_all(seen)
    for amount in seen:
        single.staleness.observe(amount)
    names = [f"staleness_{name}" for name in ("count", "sum")]
    bounds = [("staleness_bucket", {"le": str(float(bound))}) for bound in (0, 4, 6, 64, 128)]
    for name, labels in [*((name, {}) for name in names), *bounds]:
        assert together.value(name, **labels) == single.value(name, **labels)
    assert together.value("staleness_count") == len(seen)


def test_counted_values_are_read_back() -> None:
    metrics = Metrics("ps")
    metrics.pushes_total.labels("params").inc(3)
    metrics.bytes_total.labels("received").inc(1024)
    for staleness in (0, 5, 200):
        metrics.staleness.observe(staleness)
    metrics.snapshot_age_seconds.set_function(lambda: 7.5)
    assert metrics.value("pushes_total", vector="params") == 3
    assert metrics.value("pushes_total", vector="other") is None
    assert metrics.value("bytes_total", direction="received") == 1024
    assert metrics.value("bytes_total", direction="sent") == 0
    assert metrics.value("staleness_bucket", le="4.0") == 1
    assert metrics.value("staleness_bucket", le="6.0") == 2
    assert metrics.value("staleness_bucket", le="128.0") == 2
    assert metrics.value("staleness_count") == 3
    assert metrics.value("snapshot_age_seconds") == 7.5


def test_a_counter_is_read_without_a_scrape() -> None:
    metrics, scrapes = Metrics("ps"), itertools.count()
    metrics.add_callback("retries_total", lambda: float(next(scrapes)), to="coordinator")
    metrics.bytes_total.labels("received").inc(1024)
    assert metrics.read_counter("bytes_total", direction="received") == 1024
    assert metrics.read_counter("bytes_total", direction="sent") == 0
    assert next(scrapes) == 0, "no callback ran"
    metrics.wait_for_scrape(timeout_s=600)  # returns at once: there was no scrape


def test_values_of_labels_have_an_end() -> None:
    metrics = Metrics("ps")
    for number in range(MOST_SERIES + 3):
        metrics.pushes_total.labels(f"v{number}").inc()
    metrics.pushes_total.labels("v0").inc()
    metrics.pulls_total.labels("v" * (LONGEST_LABEL + 1)).inc()
    assert metrics.value("pushes_total", vector="v0") == 2
    assert metrics.value("pushes_total", vector=OTHERS) == 3
    assert metrics.value("pulls_total", vector=OTHERS) == 1
    assert metrics.text().count("dbelief_ps_pushes_total{") == MOST_SERIES + 1


def test_a_counter_follows_a_total_that_is_kept_elsewhere() -> None:
    metrics = Metrics("coordinator")
    for total, seen in ((0, 0), (5, 5), (3, 5), (6, 6)):
        metrics.raise_to("iterations_total", total)
        assert metrics.value("iterations_total") == seen


def test_counter_follows_one_total_per_label() -> None:
    metrics = Metrics("coordinator")
    metrics.raise_to("members_lost_total", 2, role="ps")
    metrics.raise_to("members_lost_total", 1, role="worker")
    assert [metrics.value("members_lost_total", role=role) for role in ("ps", "worker")] == [2, 1]


def test_scrape_sums_callbacks_and_survives_resets() -> None:
    metrics, here, there = Metrics("worker"), [0], [0]
    metrics.add_callback("retries_total", lambda: here[0], to="ps")
    metrics.add_callback("retries_total", lambda: there[0], to="ps")
    for here[0], there[0], seen in ((3, 0, 3), (3, 4, 7), (1, 4, 8), (2, 4, 9)):  # one that fell began anew
        assert metrics.value("retries_total", to="ps") == seen
    assert metrics.value("retries_total", to="coordinator") == 0


def test_unset_gauge_is_nan() -> None:
    metrics = Metrics("coordinator")
    assert math.isnan(metrics.value("validation_accuracy") or 0)
    assert math.isnan(metrics.value("members", role="ps") or 0)
    assert metrics.value("samples_total") == 0


def test_standby_exports_no_job_metrics() -> None:
    metrics = Metrics("coordinator", standing_by=True)
    metrics.leading.set(0)
    families = {family.name for family in text_string_to_metric_families(metrics.text())}
    assert {name for name in families if name.startswith("dbelief_")} == {"dbelief_coordinator_leading"}
    metrics.lead()
    metrics.lead()
    families = {family.name for family in text_string_to_metric_families(metrics.text())}
    assert len([name for name in families if name.startswith("dbelief_")]) == len(TABLE["coordinator"])


def test_room_on_the_disk_is_asked_for_at_each_scrape(tmp_path: Path) -> None:
    metrics, folder = Metrics("ps"), tmp_path / "run"
    metrics.watch_disk(folder)
    assert math.isnan(metrics.value("disk_free_bytes") or 0)
    folder.mkdir()
    assert 0 < (metrics.value("disk_free_bytes") or 0) < (metrics.value("disk_size_bytes") or 0)
    assert metrics.value("disk_size_bytes") == shutil.disk_usage(folder).total


def test_settle_releases_followed_objects() -> None:
    class Shard:
        retries = 3

    metrics, shard = Metrics("worker"), Shard()
    metrics.add_callback("retries_total", functools.partial(getattr, shard, "retries"), to="ps")
    gone = weakref.ref(shard)
    metrics.settle()
    assert metrics.value("retries_total", to="ps") == 3.0  # though nobody scraped it
    del shard
    gc.collect()
    assert gone() is None
    metrics.text()
    assert metrics.value("retries_total", to="ps") == 3.0


def test_end_waits_for_a_scrape_only_if_scraped_before() -> None:
    metrics, ended = Metrics("coordinator"), threading.Event()
    metrics.wait_for_scrape(1000.0)  # returns: nobody ever came
    metrics.text()

    def end() -> None:
        metrics.wait_for_scrape(1000.0)
        ended.set()

    ending = threading.Thread(target=end)
    ending.start()
    scrapes = 0
    while not ended.wait(0.01):  # it may not wait yet
        metrics.text()
        scrapes += 1
    ending.join()
    assert scrapes > 0


def test_two_roles_in_one_process_do_not_meet() -> None:
    worker, coordinator = Metrics("worker"), Metrics("coordinator")
    worker.samples_total.inc(32)
    assert coordinator.value("samples_total") == 0
    assert [worker.value("phase_seconds_total", phase=phase) for phase in PHASES] == [0.0] * 5
    assert not hasattr(worker, "members")


def test_a_job_is_in_one_state() -> None:
    metrics = Metrics("coordinator")
    for state in ("empty", "ready", "ready", "done"):
        metrics.set_state(state)
    assert {one: metrics.value("state", state=one) for one in STATES} == {one: float(one == "done") for one in STATES}
    with pytest.raises(ValueError, match="'waiting' is none of empty, "):
        metrics.set_state("waiting")


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="'shard' has no metrics; allowed are ps, worker, coordinator"):
        Metrics("shard")


@pytest.mark.processes
def test_served_over_http_until_closed() -> None:
    metrics = Metrics("worker")
    metrics.steps_total.inc(5)
    metrics.serve("127.0.0.1:0")
    host, port = host_and_port(metrics.url.split("/")[2])
    with urllib.request.urlopen(metrics.url, timeout=60) as answer:
        text = answer.read().decode()
    assert "\ndbelief_worker_steps_total 5.0\n" in text
    with pytest.raises(ValueError, match="already"):
        metrics.serve("127.0.0.1:0")
    metrics.close()
    metrics.close()
    with socket.socket() as client:
        assert client.connect_ex((host, port)) != 0


@pytest.mark.processes
def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"metrics cannot be served on 127\.0\.0\.1:{port}: .*in use"):
            Metrics("ps").serve(f"127.0.0.1:{port}")
