"""What holds for every test: how Hypothesis runs, what may not be left behind, which data is there."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dbelief.arrays.backend import Backend
    from dbelief.security import Credentials
    from tests.processes.conftest import Operator

ROOT = Path(__file__).resolve().parents[1]
os.environ["DBELIEF_PICTURES"] = "0"  # a second of processor time for each job; the tests of pictures draw some
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".cache" / "hypothesis"))
NEAR = "localhost,127.0.0.1,::1"
for _name in (
    "no_proxy",
    "NO_PROXY",
):  # clients of tests, of HTTP and S3, would take the environment's proxy to loopback
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), NEAR)))
os.environ["XDG_STATE_HOME"] = str(ROOT / ".cache" / "state")  # where processes without credentials share a secret

from hypothesis import settings  # noqa: E402 (reads the line above)

PROGRAMS = ("ps_server", "worker", "coordinator")
GRACE_S = 60.0
MARK = "DBELIEF_TEST_SESSION"
"""In the environment of every process that a test starts, however far down: how an orphan is recognised."""
KEPT = re.compile(r"dbelief-(cache-)?[0-9]+")
"""Temporary folders that processes of a user share, and keep: their secret, and the cache of objects."""
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# A deadline per example fails on a busy machine; in CI the same examples are drawn every time. Where a test says
# nothing else, `make test` draws few examples and `make test-long` (--hypothesis-profile=many) Hypothesis's usual 100.
settings.register_profile("many", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("dbelief", settings.get_profile("many"), max_examples=15)
settings.load_profile("dbelief")


@pytest.fixture(scope="session")
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary folder of this session, for its processes too: pytest's own folders stay where they are."""
    tmp_path_factory.getbasetemp()
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        # mpiexec of MPICH writes the machine's topology into a file below /tmp, whatever TMPDIR is, and leaves it
        # there where ranks are killed; not where a file with the topology is named, missing or not.
        patch.setenv("HWLOC_XMLFILE", str(folder / "topology.xml"))
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(_temporary: Path) -> Iterator[None]:
    """Set up before every other fixture and torn down after them all: fails on what should have ended, or gone."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    yield
    del os.environ[MARK]
    both = [name for name in PROGRAMS if name in sys.modules and f"dbelief.{name}" in sys.modules]
    assert not both, f"one process imported {both} under both names, so their classes and counters exist twice"
    until_s = time.monotonic() + GRACE_S
    while (left := _left_threads() + _left_processes(mark)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not left, f"left behind {GRACE_S:g} s after the last test: {'; '.join(left)}"
    if (folders := sys.modules.get("dbelief.process.temporary_folder")) is not None:
        folders.remove_left(_temporary)  # those of launchers that tests have killed
    files = [path.name for path in _temporary.glob("dbelief-*") if not KEPT.fullmatch(path.name)]
    assert not files, f"left behind in the temporary folder: {', '.join(files)}"


def _left_threads() -> list[str]:
    """Threads that would keep this process alive."""
    main = threading.main_thread()
    return [f"thread {t.name}" for t in threading.enumerate() if t is not main and not t.daemon]


def _left_processes(mark: str) -> list[str]:
    """Our children, and orphans that carry our mark; none where there is no /proc."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            if int(folder.name) != os.getpid() and (parent == os.getpid() or marked):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                left.append(f"process {folder.name} ({command or 'dead, but nobody waited for it'})")
        except (OSError, ValueError):
            continue  # it ended while we looked, or belongs to another user
    return left


def _mnist() -> Path | str:
    """Folder of the four MNIST files, or why there is none."""
    data = os.environ.get("DBELIEF_DATA")
    if not data:
        return "DBELIEF_DATA is not set: it names a folder that holds mnist/ with the four IDX files"
    folder = Path(data) / "mnist"
    missing = [name for name in IDX if not (folder / name).exists() and not (folder / f"{name}.gz").exists()]
    return f"{folder} lacks {', '.join(missing)}" if missing else folder


@pytest.fixture(autouse=True)
def _nothing_known_to_the_log() -> Iterator[None]:
    """A role that a test runs in this process names itself in every later line; the next test starts without."""
    yield
    if (logs := sys.modules.get("dbelief.process.log")) is not None:
        logs.clear_context()


@pytest.fixture(scope="session")
def mnist() -> Path:
    """Folder of the four MNIST files; the test is skipped where it is not there."""
    found = _mnist()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `mnist` where MNIST is not."""
    found = _mnist()
    if isinstance(found, str):
        for item in items:
            if item.get_closest_marker("mnist"):
                item.add_marker(pytest.mark.skip(reason=found))


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def gpu() -> Backend:
    """A CUDA device; the test is skipped where there is none."""
    from dbelief.arrays.backend import select_backend
    from dbelief.errors import JobError

    try:
        return select_backend("cuda")
    except JobError as error:
        pytest.skip(str(error))


@pytest.fixture
def cuda() -> Iterator[Backend]:
    """A CUDA device; where there is none, the stand-in for two of them."""
    from dbelief.arrays.backend import select_backend
    from dbelief.errors import JobError
    from tests.device.standin.cupy import standing_in

    try:
        found = select_backend("cuda")
    except JobError:
        with standing_in(devices=2):
            yield select_backend("cuda")
    else:
        yield found


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Starts roles as processes in the test's folder; they end with the test."""
    from tests.processes.conftest import operating

    with operating(tmp_path) as operator:
        yield operator


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of `dbelief certs`: this job's, another job's, and one whose certificates ended half an hour ago."""
    from dbelief.security.certificates import CLOCKS_APART, make_credentials

    made = {name: tmp_path_factory.mktemp(name) for name in ("ours", "others", "ended")}
    for name, folder in made.items():
        days = -0.5 * CLOCKS_APART.total_seconds() / 86_400 if name == "ended" else 1.0
        assert make_credentials(folder, days, ["registry", "localhost"], ["localhost", "127.0.0.1"])
    return made


@pytest.fixture(scope="session")
def ours(folders: dict[str, Path]) -> Callable[[str], Credentials]:
    """Of this job, by role."""
    from dbelief.security import Credentials

    return lambda role: Credentials.read(folders["ours"] / role)
