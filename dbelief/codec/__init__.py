"""How the numbers of a segment are written for the wire: half as long, or far shorter with what is left out kept.

A codec turns (n,) float32 into a payload of bytes, and any payload of its kind back, however the sender made it.
`protos/segments.proto` says byte by byte what a payload holds. `fp32`, numbers as they are, needs no codec.
"""

from .codec import Codec, Decode, restore_residual
from .factory import CODECS, make_codec, warm_up

__all__ = ["CODECS", "Codec", "Decode", "make_codec", "restore_residual", "warm_up"]
