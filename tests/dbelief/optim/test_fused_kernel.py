import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.arrays.jit import on_demand
from dbelief.optim.rules.fused_kernel import fused

SOURCE = """
def double(w, g, rate):
    for i in range(w.size):
        w[i] = rate * g[i]
"""


def without_a_file() -> Any:
    """A function that numba finds no place to cache for, as if no folder could be written."""
    space: dict[str, Any] = {}
    exec(SOURCE, space)
    return space["double"]


def test_compiles_without_a_writable_cache() -> None:
    w = np.zeros(3, np.float32)
    fused(states=0, scalars=1)(without_a_file())(w, np.ones(3, np.float32), 2.0)
    np.testing.assert_array_equal(w, [2.0, 2.0, 2.0])


def test_settings() -> None:
    loop: Any = on_demand(without_a_file(), "write float32", "read float32", "float32", "void")()
    assert loop.targetoptions["nogil"] is True
    assert loop.targetoptions["error_model"] == "numpy"
    assert not loop.targetoptions.get("fastmath")
    assert len(loop.signatures) == 1


PROGRAM = """
import sys
from dbelief.optim import make_rule, warm_up
assert "numba" not in sys.modules, "importing the rules must not import numba"
rule = make_rule("sgd", {})
assert "numba" not in sys.modules, "making a rule must not import numba"
warm_up(rule)
"""


def test_numba_is_lazy_and_uses_its_cache_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)
    assert list(tmp_path.rglob("*.nbi"))
