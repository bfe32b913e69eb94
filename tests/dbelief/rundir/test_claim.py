"""The claim of a run folder: of starts at the same time one has it, whatever the order of their system calls."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.job import Job
from dbelief.rundir.claim import CLAIM, Claim, RunInProgress, claimed, make_folder
from dbelief.rundir.folder import claim_earlier, claim_new, folder_of
from tests.jobs import small_job
from tests.threads import at_once

SYSTEM_CALLS = ("os.open", "os.mkdir", "os.rename", "os.stat", "os.listdir", "os.pwrite", "fcntl.flock")
Start = Callable[[str], Claim]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return small_job(tmp_path, name="test", output=str(tmp_path / "runs"))


@pytest.fixture(params=["new", "new beside an earlier one", "resumed"])
def start(request: pytest.FixtureRequest, job: Job) -> Start:
    """Starts of a job of one name, by the name of the process."""
    if request.param != "new":
        earlier = claim_new(job, "earlier")
        (earlier.folder / "mine").write_text("earlier")
        earlier.release()
    return partial(claim_earlier, folder_of(job)) if request.param == "resumed" else partial(claim_new, job)


def attempt(start: Start, holder: str) -> Claim | None:
    """The claim of a start; None where it is refused."""
    try:
        return start(holder)
    except RunInProgress:
        return None


@contextmanager
def interrupted(at: int, by: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Call `by` before system call number `at`; gives the names of the calls so far."""
    seen: list[str] = []

    def before(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            if len(seen) == at:
                by()
            return call(*arguments, **named)

        return wrapped

    with monkeypatch.context() as patch:
        for path in SYSTEM_CALLS:
            module, name = path.split(".")
            patch.setattr(path, before(name, getattr({"os": os, "fcntl": fcntl}[module], name)))
        yield seen


def test_one_of_two_starts_has_the_folder_wherever_the_other_comes_in(
    start: Start, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never renames a folder that another process has."""
    for at in range(1, 200):
        claims: list[Claim | None] = []
        with interrupted(at, lambda: claims.append(attempt(start, "second")), monkeypatch) as seen:  # noqa: B023
            claims.append(attempt(start, "first"))
        if len(claims) == 1:  # the first has ended before
            assert at > 8, seen
            break
        (holder,) = (claim for claim in claims if claim is not None)
        assert os.path.samestat(os.stat(holder.folder / CLAIM), os.fstat(holder._lock._file)), (at, seen)
        assert (holder.folder / "snapshots").is_dir()
        assert attempt(start, "third") is None
        holder.release()
        if (holder.folder / "mine").exists():
            continue
        (holder.folder / "mine").write_text("of a run")  # the next one is not the first of its name
    else:
        raise AssertionError("it does not end")


def test_one_of_two_starts_has_the_folder_though_a_run_comes_and_goes_between(
    start: Start, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run of the same name, from its start to its end, takes place before each of the system calls."""

    def whole_run() -> None:
        if (claim := attempt(partial(claim_new, job), "between")) is not None:
            (claim.folder / "mine").write_text("of the run between")
            claim.release()

    for at in range(1, 200):
        with interrupted(at, whole_run, monkeypatch) as seen:
            claim = attempt(start, "first")
        if len(seen) < at:
            break
        if claim is not None:
            assert os.path.samestat(os.stat(claim.folder / CLAIM), os.fstat(claim._lock._file)), (at, seen)
            assert attempt(start, "third") is None
            claim.release()
    else:
        raise AssertionError("it does not end")


@pytest.mark.usefixtures("eager_threads")
def test_of_many_threads_one_has_the_folder(start: Start) -> None:
    for _ in range(10):
        (claim,) = filter(None, at_once(partial(attempt, start), [f"process {number}" for number in range(4)]))
        assert os.path.samestat(os.stat(claim.folder / CLAIM), os.fstat(claim._lock._file))
        (claim.folder / "mine").write_text("a run")
        claim.release()


def test_a_folder_that_is_moved_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path.mkdir` finds it, looks whether it is a folder, and finds nothing."""
    folder, mkdir = tmp_path / "run", os.mkdir
    folder.mkdir()

    def moved(path: Path, mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileExistsError:
            os.rename(path, tmp_path / "run.1")
            raise

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", moved)
        with pytest.raises(FileNotFoundError):
            make_folder(folder)
    make_folder(folder)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_the_process_that_ends_by_sigkill_frees_the_folder(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys; from pathlib import Path; from dbelief.rundir.claim import Claim\n"
        "claim = Claim.take(Path(sys.argv[1]), 'killed'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=False).returncode == -9
    assert (tmp_path / CLAIM).read_text() == '{"holder": "killed"}'
    with claimed(tmp_path):
        pass


def test_a_forked_process_does_not_hold_the_folder(tmp_path: Path) -> None:
    """It may go on after the run."""
    claim = Claim.take(tmp_path, "a")
    ready, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        assert attempt(partial(Claim.take, tmp_path), "b") is None, "this process holds it"
        claim.close()  # as at the end of this process, which unlocks nothing itself
        other = attempt(partial(Claim.take, tmp_path), "b")
        assert other is not None, "the forked process holds it"
        other.release()
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(pid, 0)
        for descriptor in (*ready, *go_on):
            os.close(descriptor)


def test_a_coordinator_shares_the_folder_of_its_launcher_alone(tmp_path: Path) -> None:
    launcher = Claim.take(tmp_path, "launcher")
    coordinator = Claim.join(tmp_path, "launcher")
    with pytest.raises(RunInProgress, match="a run is in progress there; end it first, or give this one another name"):
        Claim.join(tmp_path, "another")
    launcher.release()
    with pytest.raises(RunInProgress):  # the launcher was killed, and its coordinator still writes
        Claim.take(tmp_path, "another launcher")
    coordinator.release()
    Claim.take(tmp_path, "another launcher").release()


def test_a_standby_goes_on_with_the_run_of_a_leader_that_is_suspended(tmp_path: Path) -> None:
    leader = Claim.take(tmp_path, "leader")
    leader.name_run(7)
    with pytest.raises(UserError, match="is the folder of another run by now; --fresh starts this one anew"):
        Claim.join(tmp_path, "standby", run_id=8)
    with pytest.raises(RunInProgress):
        Claim.join(tmp_path, "of another job")
    standby = Claim.join(tmp_path, "standby", run_id=7)
    leader.release()
    with pytest.raises(RunInProgress):
        Claim.take(tmp_path, "another")
    standby.release()


def test_a_standby_goes_on_where_the_leader_has_ended(tmp_path: Path) -> None:
    leader = Claim.take(tmp_path, "leader")
    leader.name_run(7)
    leader.release()
    standby = Claim.join(tmp_path, "standby", run_id=7)
    with pytest.raises(RunInProgress):
        Claim.take(tmp_path, "another")
    standby.release()


@pytest.mark.skipif(sys.platform != "linux", reason="names of sockets that are no files")
def test_a_file_system_without_locks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    first = start("first")
    assert attempt(start, "second") is None
    first.release()
    start("third").release()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/sweep: Not a directory$"), claimed(tmp_path / "file" / "sweep"):
        pass
