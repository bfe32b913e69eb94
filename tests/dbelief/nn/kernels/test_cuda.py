"""The CUDA sources: they compile for compute capability 9.0, which needs a compiler but no device."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.nn.kernels import Blocks, HostKernels, make_kernels
from dbelief.nn.kernels.cuda import PARTS, KernelPart, options, source
from tests.dbelief.nn.kernels.operands import draw

KERNELS = {"strips", "norms", "given", "rounded"}


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_nvrtc_compiles(part: KernelPart, vector: int) -> None:
    """With what CuPy compiles with where it runs."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()  # the library is loaded at the first call
    except Exception as error:
        pytest.skip(f"NVRTC cannot be loaded ({str(error).splitlines()[0]})")
    program = nvrtc.createProgram(source(), "blocks.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("--gpu-architecture=compute_90", *options(part, vector)))
        found: Any = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    ptx = found.decode() if isinstance(found, bytes) else str(found)
    assert set(re.findall(r"\.visible \.entry (\w+)", ptx)) == KERNELS
    assert "cp.async" in ptx


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.long] * (n > 0)) for n, part in enumerate(PARTS)], ids=str
)
def test_all_sums_stay_in_registers(part: KernelPart, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not there")
    code = tmp_path / "blocks.cu"
    code.write_text(source())
    flags = "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "blocks.cubin")
    done = subprocess.run(["nvcc", *options(part, 4), *flags, str(code)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\d+) bytes spill", done.stderr) == ["0"] * 8, done.stderr
    registers = max(map(int, re.findall(r"Used (\d+) registers", done.stderr)))
    assert registers * part.threads * -(-384 // part.threads) <= 65536


@pytest.mark.gpu
@pytest.mark.parametrize("math", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(("depth", "neurons", "batch"), [(48, 128, 96), (50, 30, 33)])
def test_cuda_agrees_with_the_host(gpu: Backend, depth: int, neurons: int, batch: int, math: Any) -> None:
    o = draw(Blocks(rows=8, columns=9, window=3, depth=depth, neurons=neurons), batch, "float32")
    ends = []
    for backend, kernels in (
        (gpu, make_kernels(o.blocks, batch, gpu, math=math)),
        (select_backend("cpu"), HostKernels(o.blocks, batch, o.w.dtype)),
    ):
        w, x, y = map(backend.to_device, (o.w, o.x, o.y))
        results = [backend.xp.full_like(a, np.nan) for a in (y, x, w, w[..., 0, 0, 0])]
        kernels.forward(w, x, results[0])
        kernels.backward_data(w, y, results[1])
        kernels.backward_weight(y, x, results[2])
        kernels.row_norms(w, results[3])
        ends.append([backend.to_host(a) for a in results])
    for found, wanted in zip(*ends, strict=True):
        np.testing.assert_allclose(
            found, wanted, rtol=0, atol={"float32": 1e-5, "tf32": 3e-3, "bf16": 2e-2}[math] * abs(wanted).max()
        )


@pytest.mark.gpu
def test_cuda_gives_the_same_bits_again(gpu: Backend) -> None:
    o = draw(Blocks(rows=20, columns=20, window=5, depth=48, neurons=128), 96, "float32")
    kernels = make_kernels(o.blocks, 96, gpu)
    w, y = gpu.to_device(o.w), gpu.to_device(o.y)
    first, second = (gpu.xp.empty(o.x.shape, np.float32) for _ in range(2))
    kernels.backward_data(w, y, first)
    kernels.backward_data(w, y, second)
    np.testing.assert_array_equal(gpu.to_host(first), gpu.to_host(second))


def test_double_precision_is_the_hosts() -> None:
    blocks = Blocks(3, 3, 2, 4, 4)
    assert isinstance(make_kernels(blocks, 8, select_backend("cpu"), np.float64), HostKernels)
    with pytest.raises(ValueError, match="dtype is float64, which the kernels of cupy do not have"):
        make_kernels(blocks, 8, Backend("cupy", None), np.float64)
    with pytest.raises(ValueError, match="dtype is float16"):
        make_kernels(blocks, 8, select_backend("cpu"), np.float16)
