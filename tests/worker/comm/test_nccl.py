"""NCCL's engine against CuPy's own signatures, and its order of calls against a stand-in; no GPU is needed."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.errors import RankFailure, Unavailable
from worker.comm import Communicator, Message, run_ranks
from worker.comm.nccl import ID_BYTES, NcclEngine

SIGNATURES = {
    "send": ["sendbuf", "count", "datatype", "peer", "stream"],
    "recv": ["recvbuf", "count", "datatype", "peer", "stream"],
    "check_async_error": [],
    "abort": [],
    "destroy": [],
}


def test_cupy_has_all_called_functions() -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    nccl = pytest.importorskip("cupy.cuda.nccl", reason="needs CuPy with NCCL")
    if not nccl.available:
        pytest.skip("CuPy finds no NCCL")
    for name, expected in SIGNATURES.items():
        written = re.search(r"\((.*)\)", getattr(nccl.NcclCommunicator, name).__doc__.splitlines()[0])
        assert written is not None
        assert [part.split()[-1] for part in written[1].split(", ")][1:] == expected, name
    assert nccl.NcclCommunicator.__doc__.startswith("NcclCommunicator(int ndev, bytes commId, int rank")
    assert isinstance(nccl.NCCL_UINT8, int)
    assert callable(nccl.groupStart)
    assert callable(nccl.groupEnd)
    assert callable(nccl.get_unique_id)
    assert callable(cupy.cuda.get_current_stream)
    assert hasattr(cupy.cuda.Event, "done")


class StandIn:
    """NCCL as its engine sees it: writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.done = True

    def modules(self) -> dict[str, ModuleType]:
        cupy: Any = ModuleType("cupy")
        cupy.cuda = cuda = ModuleType("cupy.cuda")
        cuda.nccl = nccl = ModuleType("cupy.cuda.nccl")  # type: ignore[attr-defined]
        cuda.get_current_stream = lambda: SimpleNamespace(ptr=7)  # type: ignore[attr-defined]
        cuda.Event = lambda disable_timing: SimpleNamespace(record=lambda stream: None, done=self.done)  # type: ignore[attr-defined]
        for name in ("groupStart", "groupEnd"):
            setattr(nccl, name, self._noting(name))
        nccl.get_unique_id = lambda: bytes(range(ID_BYTES))  # type: ignore[attr-defined]
        nccl.NcclCommunicator = self._communicator  # type: ignore[attr-defined]
        nccl.NCCL_UINT8 = 1  # type: ignore[attr-defined]
        return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}

    def _noting(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def _communicator(self, *arguments: Any) -> Any:
        self.calls.append(("communicator", *arguments))
        return SimpleNamespace(**{name: self._noting(name) for name in SIGNATURES})


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return stand_in


def _array(pointer: int, size: int) -> Any:
    data = SimpleNamespace(ptr=pointer)
    return SimpleNamespace(data=data, nbytes=4 * size, size=size, dtype=np.dtype(np.float32), flags=np.ones(1).flags)


def test_every_rank_gets_the_id_that_rank_0_draws(nccl: StandIn) -> None:
    run_ranks(3, lambda comm: NcclEngine(comm.engine).close(), 10.0)
    made = sorted(call[1:] for call in nccl.calls if call[0] == "communicator")
    assert made == [(3, bytes(range(ID_BYTES)), rank) for rank in range(3)]


def test_messages_started_together_are_one_group(nccl: StandIn) -> None:
    def body(comm: Communicator) -> None:
        engine = NcclEngine(comm.engine)
        comm.barrier()
        if comm.rank == 0:
            nccl.calls.clear()
            Communicator(engine).start([Message(True, _array(100, 3), 1), Message(False, _array(200, 2), 1)]).wait()

    run_ranks(2, body, 10.0)
    assert nccl.calls == [
        ("groupStart",),
        ("send", 100, 12, 1, 1, 7),
        ("recv", 200, 8, 1, 1, 7),
        ("groupEnd",),
    ]


def test_a_wait_ends_with_its_time_or_with_a_death(nccl: StandIn) -> None:
    nccl.done = False

    def body(comm: Communicator) -> None:
        engine = NcclEngine(comm.engine)
        comm.barrier()
        if comm.rank == 0:
            handle = engine.start([Message(False, _array(1, 2), 1)])
            with pytest.raises(Unavailable, match=r"rank 0 waited for rank 1 to send 8 bytes"):
                handle.wait(0.01)
            comm.barrier()
            with pytest.raises(RankFailure, match="rank 1 died of ValueError: boom"):
                handle.wait(10.0)
        else:
            comm.barrier()
            engine.abort(ValueError("boom"))

    with pytest.raises(ValueError, match="boom"):
        run_ranks(2, body, 10.0)
