"""Block-local layers (Coates et al. 2013): their shape, and the four kernels that are nearly all of their time.

Beside them, the products of sparse rows with a dense layer (`sparse`).
"""

from .blocks import Blocks
from .factory import Kernels, make_kernels
from .host import HostKernels
from .space_to_depth import depth_to_space, space_to_depth

__all__ = ["Blocks", "HostKernels", "Kernels", "depth_to_space", "make_kernels", "space_to_depth"]
