"""TensorBoard: event files in the folder `tensorboard` of the run, by tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

FOLDER = "tensorboard"


class TensorBoardSink:
    """See `Sink`. A resume begins a new event file, which hides the points of the samples that are trained again."""

    def __init__(self, run: Path, state: Mapping[str, Any]) -> None:
        self.state = dict(state)
        self._folder = run / FOLDER
        self._samples = int(state.get("samples", 0))
        self._writer = self._opened(self._samples + 1 if state else None)

    def _opened(self, purge_from: int | None) -> Any:
        return SummaryWriter(str(self._folder), purge_step=purge_from, flush_secs=3600)

    def begin(self, name: str, parameters: Mapping[str, str]) -> None:
        """See `Sink.begin`."""
        if not self.state:
            table = "\n".join(f"| {field} | {value} |" for field, value in parameters.items())
            self._writer.add_text("job", f"{name}\n\n| field | value |\n|---|---|\n{table}")

    def numbers(self, values: Mapping[str, float], samples: int, time_s: float) -> None:
        """See `Sink.numbers`."""
        if samples < self._samples:
            self._writer.close()
            self._writer = self._opened(samples)
        self._samples = samples
        for name, value in values.items():
            self._writer.add_scalar(name, value, samples, time_s)

    def flush(self) -> None:
        """See `Sink.flush`."""
        self._writer.flush()
        self.state = {"samples": self._samples}

    def picture(self, name: str, file: Path) -> None:
        """See `Sink.picture`."""
        from PIL import Image

        with Image.open(file) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), self._samples, dataformats="HWC")

    def model(self, file: Path) -> None:
        """TensorBoard keeps no files: the path is recorded."""
        self._writer.add_text("model", str(file), self._samples)

    def end(self, done: bool, reason: str) -> None:
        """See `Sink.end`."""
        self._writer.add_text("end", reason, self._samples)
        self._writer.close()
