"""Replay of the wire codecs: encodes and decodes each segment as client and shard do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dbelief.core.absent import Ranges
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Pusher
from dbelief.rpc.wire.payloads import Codecs, Payloads, part_of, read_into


class CodecReplay:
    """Codec state of all pushes and pulls of one vector.

    Pushes of one pusher must be passed in their order, since a codec may keep its residual: one vector for each
    incarnation that has pushed.
    """

    def __init__(self, codecs: Codecs, spans: Sequence[SegmentSpan]) -> None:
        self._codecs, self._spans = codecs, spans
        self._residuals: dict[Pusher, np.ndarray] = {}

    def pushed(
        self,
        values: np.ndarray,
        pusher: Pusher | None = None,
        absent: Ranges = (),
        within: Collection[int] | None = None,
    ) -> np.ndarray:
        """The values that shards receive for (N,) float32: the same array, changed. For weights no residual is kept.

        `absent`: see `Push`; `within`: the segments that are sent, by default all.
        """
        codec = self._codecs.push
        if codec is None:
            return values
        residual = None
        if codec.keeps:
            assert pusher is not None, "nothing is left out of weights"
            residual = self._residuals.setdefault(pusher, np.zeros_like(values))
        payloads = Payloads(codec, residual, starts=self._codecs.starts, absent=absent)
        for span in self._of(within):
            own = values[span.start : span.stop]
            part = payloads.part(span, 0, own)
            assert part is not None, "a replayed push cannot be aborted"
            if part.data is not None:  # else it is absent as a whole
                read_into(part, own)
        return values

    def pulled(self, values: np.ndarray, within: Collection[int] | None = None) -> np.ndarray:
        """The values that a replica receives for (N,) float32, of these segments: the same array, changed."""
        for span in self._of(within) if self._codecs.pull is not None else ():
            own = values[span.start : span.stop]
            read_into(part_of(span.index, 0, own, self._codecs.pull), own)
        return values

    def _of(self, within: Collection[int] | None) -> list[SegmentSpan]:
        return [span for span in self._spans if within is None or span.index in within]
