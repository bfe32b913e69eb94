"""Invalid command lines: unknown options, unreachable addresses, folders that are no runs, files in the way."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dbelief.rundir.claim import claimed
from tests.dbelief.monitor.test_status import JOB as RUN
from tests.negative.harness import Wrong, job

HERE = {"run/job.yaml": RUN}
EARLIER = {"runs/wrong/job.yaml": "an earlier run", "runs/wrong/model.safetensors": "its model",
           "runs/wrong.1/model.safetensors": "the one before"}  # fmt: skip
NOWHERE = job(data="{source: npz, file: a.npz}")
ADDRESS = r"is no address: wanted HOST:PORT, for example 127\.0\.0\.1:7070"
TAKEN = r"127\.0\.0\.1:[0-9]+"
LISTEN = r"cannot listen on .*: is the address this host's, and the port free\?"
METRICS = rf"metrics cannot be served on {TAKEN}: \[Errno [0-9]+\] Address already in use"
WAITS = "joining the job at .*, for up to 0.1 s(; then waiting until it trains)?"
RUNS = "--coordinator 127.0.0.1:1 --patience 0.1"
SCRIPT = "does not go with a script:"

WORDS = [
    Wrong("a command that is not known", "trian job.yaml",
          r"No such command 'trian'\. \(Did you mean one of: 'track', 'train'\?\) \(see dbelief --help\)"),
    Wrong("a command of a group that is not known", "job chekc",
          r"No such command 'chekc'\. .*\(see dbelief job --help\)"),
    Wrong("no job", "train", r"Missing argument 'JOB'\. \(see dbelief train --help\)"),
    Wrong("an option that is not known", "train job.yaml --resum", r"No such option '--resum'\. .*"),
    Wrong("an option before the command", "--quiet train job.yaml", r"No such option '--quiet'\. .*"),
    Wrong("too much", "train job.yaml job.yaml", r"Got unexpected extra argument \(job\.yaml\) .*"),
    Wrong("a sweep over nothing", "sweep job.yaml", r"nothing to sweep: give values of a field, as --set lr=0\.02,.*"),
    Wrong("a sweep over a field that is not known", "sweep job.yaml --set strategy.bathc=32,64",
          r"job\.yaml: strategy\.bathc: no such field, did you mean batch\?.*", files={"job.yaml": NOWHERE}),
    Wrong("a sweep whose second value is wrong", "sweep job.yaml --set lr=0.1,-1",
          r"lr=-1: job\.yaml: strategy\.rule\.rate: must be a number above 0, not -1", files={"job.yaml": NOWHERE}),
    Wrong("a sweep with a value missing", "sweep job.yaml --set lr=0.1,,1",
          r"--set lr=0\.1,,1: a value is missing; .*"),
    Wrong("a sweep of no runs at a time", "sweep job.yaml --jobs 0", "Invalid value for '--jobs': 0 is not in .*"),
    Wrong("a size that is none", "bench apply --parameters 1X",
          r"Invalid value for '--parameters': must be a whole .*"),
    Wrong("a number of workers below 1", "bench wire --workers 2,0",
          r"Invalid value for '--workers': must be whole numbers above 0 with commas between, not '2,0'.*"),
]  # fmt: skip
FOLDERS = [
    Wrong("export of nothing", "export nowhere", r"nowhere: no such folder"),
    Wrong("export of a file", "export job.yaml", r"job\.yaml/job\.yaml: cannot be read: Not a directory"),
    Wrong("export of a folder that is no run", "export folder", r"folder/job\.yaml: no such file",
          files={"folder/": ""}),
    Wrong("export of a run without a model", "export run",
          r"run: holds neither model\.safetensors nor a complete snapshot set", files=HERE),
    Wrong("export in a format that is not known", "export run --format onnx",
          "Invalid value for '--format': 'onnx' is not one of .*", files=HERE),
    Wrong("export into a folder that is not there", "export run --output there/model.npz --format npz",
          r"there/model\.npz: there is no folder there", files={**HERE, "run/model.safetensors": ""}),
    Wrong("export onto a folder", "export run --output run",
          "Invalid value for '--output': File 'run' is a directory.*",
          files=HERE),
    Wrong("export of rows of a job without tables", "export run --tables rows", "run: job digits has no tables",
          files=HERE),
    Wrong("export of rows in a format of models", "export run --tables rows --format npz",
          "--tables FOLDER goes with --format safetensors or parquet, and no --output and --vector", files=HERE),
    Wrong("export of a model in a format of rows", "export run --format parquet",
          "--format parquet is one of rows: give --tables FOLDER", files=HERE),
    Wrong("export of a model that is torn", "export run", r"run/model\.safetensors: cannot be read: .*",
          files={**HERE, "run/model.safetensors": b"\x40\0\0\0\0\0\0\0{"}),
    Wrong("evaluate a run without a model", "evaluate run",
          "run: has no model: the run failed, or has not ended; .*", files=HERE),
    Wrong("predict by the module of a script", "predict run job.yaml",
          r"the model of job wrong is the module of its script: run it by `dbelief run`, and use what it has trained "
          r"in Python, by dbelief\.load_model\(run, into=module\)",
          files={"run/job.yaml": job(model="{source: script}", data="{source: script, train: 9}"),
                 "run/model.safetensors": ""}),
    Wrong("evaluate on training data", "evaluate run --on train", "Invalid value for '--on': 'train' is not one of .*"),
    Wrong("evaluate a model that is torn", "evaluate run", r"run/model\.safetensors: .*",
          files={**HERE, "run/model.safetensors": "torn"}),
    Wrong("status of a folder that is no run", "status folder", r"folder: is no run folder: it holds no job\.yaml",
          files={"folder/": ""}),
    Wrong("status of nothing", "status nowhere", "nowhere: neither a run folder nor HOST:PORT of a coordinator"),
    Wrong("status of a summary that is torn", "status run", r".*/run/summary\.json: Invalid JSON.*",
          files={**HERE, "run/summary.json": "{"}),
    Wrong("status of a run that was killed", "status run",
          r".*/run: no coordinator answers, and there is no summary.json.*",
          1, files={**HERE, "run/address": "127.0.0.1:1"}),
    Wrong("an address in a run folder that is torn", "status run", rf".*/run/address: '' {ADDRESS}",
          files={**HERE, "run/address": ""}),
]  # fmt: skip
UNANSWERED = r"127\.0\.0\.1:1: no coordinator answers there \(Connection refused\); name its address.*"
ADDRESSES = [
    Wrong("status where nobody listens", "status 127.0.0.1:1", UNANSWERED, 1),
    Wrong("status at a port that is none", "status localhost:70700",
          "'localhost:70700' is no address: port 70700 is above 65535"),
    Wrong("top where nobody listens", "top 127.0.0.1:1", UNANSWERED, 1),
    Wrong("stop where nobody listens", "stop 127.0.0.1:1", UNANSWERED, 1),
    Wrong("scale where nobody listens", "scale workers 3 127.0.0.1:1",
          UNANSWERED, 1),
    Wrong("scale to no workers", "scale workers 0", "Invalid value for 'COUNT': 0 is not in .*"),
    Wrong("scale something else", "scale shards 3", r"Invalid value for '\{workers\|ps\}': 'shards' is not one of .*"),
    Wrong("scale to no shards", "scale ps 0", "Invalid value for 'COUNT': 0 is not in .*"),
    Wrong("health where nobody listens", "health 127.0.0.1:1 --timeout 0.1",
          r"the process at 127\.0\.0\.1:1 did not answer within 0\.1 s: Connection refused", 1),
    Wrong("health of one who says nothing", "health TAKEN --timeout 0.1",
          f"the process at {TAKEN} did not answer within 0\\.1 s", 1),
    Wrong("health of no address", "health coordinator", f"'coordinator' {ADDRESS}"),
    Wrong("a shard without a coordinator", "ps", r"Missing option '--coordinator'\. .*"),
    Wrong("a shard whose coordinator is no address", "ps --coordinator here", f"'here' {ADDRESS}"),
    Wrong("a shard whose coordinator is nowhere", f"ps {RUNS}",
          r"coordinator at 127\.0\.0\.1:1 did not answer within 0\.1 s: Connection refused", 1, first=WAITS),
    Wrong("a shard that listens at no address", f"ps {RUNS} --listen 127.0.0.1", rf"'127\.0\.0\.1' {ADDRESS}"),
    Wrong("a shard that other machines reach", f"ps {RUNS} --listen 192.0.2.1:0",
          r"not listening on 192\.0\.2\.1:0 without TLS and a token, since other machines reach it: .*"),
    Wrong("a shard whose port is taken", f"ps {RUNS} --listen TAKEN", LISTEN),
    Wrong("a shard that others find at no address", f"ps {RUNS} --advertise me", f"'me' {ADDRESS}"),
    Wrong("a shard's metrics at no address", f"ps {RUNS} --metrics 9100", f"'9100' {ADDRESS}"),
    Wrong("a shard's metrics where the port is taken", f"ps {RUNS} --metrics TAKEN", METRICS),
    Wrong("a shard's number below 0", f"ps {RUNS} --number -1",
          "Invalid value for '--number': -1 is not in the range .*"),
    Wrong("a shard's record in a file", f"ps {RUNS} --record job.yaml", "Invalid value for '--record': .* is a file.*"),
    Wrong("a worker whose coordinator is nowhere", f"worker {RUNS} --metrics 127.0.0.1:0",
          r"coordinator at 127\.0\.0\.1:1 did not answer within 0\.1 s: Connection refused", 1,
          first=f"{WAITS}|metrics on http://.*"),
    Wrong("a worker whose coordinator says nothing", "worker --coordinator TAKEN --patience 0.1",
          f"coordinator at {TAKEN} did not answer within 0\\.1 s", 1, first=WAITS),
    Wrong("a worker's metrics at a port that is none", f"worker {RUNS} --metrics 127.0.0.1:91000",
          r"'127\.0\.0\.1:91000' is no address: port 91000 is above 65535"),
    Wrong("a worker without threads", f"worker {RUNS} --threads 0", "Invalid value for '--threads': 0 is not in .*"),
    Wrong("a script with metrics", f"worker {RUNS} --metrics 127.0.0.1:0 -- python -V",
          f"--metrics {SCRIPT} it serves no metrics; those of the coordinator have the samples of all scripts"),
    Wrong("a script with a record", f"worker {RUNS} --record folder -- python -V",
          f"--record {SCRIPT} its loop is not replayed"),
    Wrong("a script that waits for a next job", f"worker {RUNS} --at-end wait -- python -V",
          f"--at-end {SCRIPT} it joins one job, and ends when its own code does"),
    Wrong("a script over ranks", f"worker {RUNS} --ranks 2 -- python -V",
          f"--ranks {SCRIPT} its module is not partitioned"),
    Wrong("a script over processes", f"worker {RUNS} --comm mpi -- python -V",
          f"--comm {SCRIPT} its module is not partitioned"),
    Wrong("a script that listens", f"worker {RUNS} --listen 127.0.0.1:0 -- python -V",
          f"--listen {SCRIPT} no other worker calls it"),
    Wrong("a script that others reach", f"worker {RUNS} --advertise host:0 -- python -V",
          f"--advertise {SCRIPT} no other worker calls it"),
    Wrong("a worker that is impatient", "worker --coordinator 127.0.0.1:1 --patience -1",
          "Invalid value for '--patience': -1.0 is not in .*"),
]  # fmt: skip
PROCESSES = [
    Wrong("a process: a command that is not known", "trian", "No such command 'trian'.*", real=True),
    Wrong("a process: a shard whose coordinator is nowhere", f"ps {RUNS} --metrics 127.0.0.1:0",
          r"coordinator at 127\.0\.0\.1:1 did not answer within 0\.1 s: Connection refused", 1,
          first=f"{WAITS}|metrics on http://.*", real=True),
    Wrong("a process: a script with metrics", f"worker {RUNS} --metrics 127.0.0.1:0 -- python -V",
          f"--metrics {SCRIPT} it serves no metrics; .*", real=True),
    Wrong("a process: a shard that listens at another host's", f"ps {RUNS} --listen 192.0.2.1:0 --insecure", LISTEN,
          first=r"--insecure: 192\.0\.2\.1:0 is open to anybody who reaches it, .*", real=True),
    Wrong("a process: a coordinator whose port is taken", "coordinator job.yaml --listen TAKEN", LISTEN, files=EARLIER,
          real=True),
]  # fmt: skip
COORDINATORS = [
    Wrong("a coordinator at no address", "coordinator job.yaml --listen 7070", f"'7070' {ADDRESS}", files=EARLIER),
    Wrong("a coordinator whose port is taken", "coordinator job.yaml --listen TAKEN", LISTEN, files=EARLIER),
    Wrong("a coordinator's metrics where the port is taken",
          "coordinator job.yaml --listen 127.0.0.1:0 --metrics TAKEN",
          METRICS, files=EARLIER),
    Wrong("a coordinator's ready file nowhere", "coordinator job.yaml --listen 127.0.0.1:0 --ready-file there/address",
          "--ready-file there/address: there is no folder there", files=EARLIER),
    Wrong("a coordinator's run folder nowhere", "coordinator job.yaml --run-folder there",
          "Invalid value for '--run-folder': Directory 'there' does not exist.*"),
    Wrong("a coordinator without data", "coordinator job.yaml --listen 127.0.0.1:0", r".*/a\.npz: no such file",
          files={**EARLIER, "job.yaml": NOWHERE}),
    Wrong("a coordinator that resumes nothing", "coordinator job.yaml --listen 127.0.0.1:0 --resume",
          ".*/runs/wrong: no run to resume"),
    Wrong("a registry's URL that is none", "coordinator job.yaml --registry localhost:6379",
          r"registry \(not a URL\): not an address: give redis://, rediss:// or unix:///path, known options only"),
    Wrong("a registry's password on the command line", "coordinator job.yaml --registry redis://:secret@host",
          "Invalid value for '--registry' .*: a password on a command line is for all to see: .*"),
    Wrong("a registry's password in a wrong URL", "coordinator job.yaml",
          r"registry redis://\.\.\.: not an address: .*", environment={"DBELIEF_REGISTRY": "redis://:secret@host:port"}),
    Wrong("a registry that is nowhere", "coordinator job.yaml --patience 0 --registry redis://127.0.0.1:1",
          r"registry redis://127\.0\.0\.1:1 does not answer: .*", 1, files=EARLIER),
    Wrong("train without data", "train job.yaml", r".*/a\.npz: no such file", files={**EARLIER, "job.yaml": NOWHERE}),
    Wrong("train --resume without a run", "train job.yaml --resume", ".*/runs/wrong: no run to resume"),
    Wrong("train into a file", "train job.yaml --set output=job.yaml", "run folder .*/job.yaml/wrong: Not a directory"),
]  # fmt: skip
SURROUNDED = [
    Wrong("a registry that refuses the login", "coordinator job.yaml",
          f"registry redis://{TAKEN} refuses the login: .*", files=EARLIER,
          environment={"DBELIEF_REGISTRY": "redis://:wrong@LOCKED"}),
    Wrong("train where a run is under way", "train job.yaml --set name=held --quiet",
          ".*/runs/held: a run is in progress there; end it first, or give this one another name"),
]  # fmt: skip
ROWS = [*WORDS, *FOLDERS, *ADDRESSES, *PROCESSES, *COORDINATORS]


class Locked(socketserver.StreamRequestHandler):
    """A registry that lets nobody in."""

    def handle(self) -> None:
        """Refuse whatever is asked, once: to a client that has gone, an answer is a broken connection."""
        while line := self.rfile.readline():
            if line.startswith(b"*"):  # a command begins; its words follow in lines of their own
                self.wfile.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")


@pytest.fixture
def locked() -> Iterator[str]:
    """Address of a registry that refuses every login."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Locked) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.processes
@pytest.mark.parametrize("wrong", ROWS, ids=str)
def test_a_wrong_command_line_is_refused(wrong: Wrong, assert_refused: Callable[[Wrong], None]) -> None:
    assert_refused(wrong)


@pytest.mark.processes
@pytest.mark.parametrize("wrong", SURROUNDED, ids=str)
def test_a_wrong_place_is_refused(
    wrong: Wrong, assert_refused: Callable[[Wrong], None], locked: str, tmp_path: Path
) -> None:
    with claimed(tmp_path / "runs" / "held"):
        there = {name: value.replace("LOCKED", locked) for name, value in wrong.environment.items()}
        assert_refused(replace(wrong, environment=there))
