"""Headless Chromium: what a page's text comes to once its script has run, and how it looks."""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

DESK, PHONE = (1280, 900), (390, 1400)
"""Widths and heights of windows, in pixels."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SETTLED_MS = 4000
"""Of the page's own time: several of its questions are answered by then."""


class Browser:
    """Opens one address at a time."""

    def __init__(self, program: str, folder: Path) -> None:
        # Chromium's own sandbox needs a user who is not root.
        sandbox = ["--no-sandbox"] * (os.geteuid() == 0)
        quiet = ["--disable-gpu", "--hide-scrollbars", "--no-first-run", f"--user-data-dir={folder / 'profile'}"]
        self._command = [program, "--headless", *sandbox, *quiet, f"--virtual-time-budget={_SETTLED_MS}"]
        self._folder = folder

    def texts(self, url: str) -> dict[str, str]:
        """What each element that has an id and is not hidden shows as text, by its id; of tables a row a line."""
        command = [*self._command, "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        reader = _Texts()
        reader.feed(done.stdout)
        return {name: "\n".join(map(_single_spaced, text.splitlines())) for name, text in reader.texts.items()}

    def console(self, url: str) -> list[str]:
        """What the page and the browser wrote to the page's console, refused contents among it."""
        command = [*self._command, "--enable-logging=stderr", "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

    def picture(self, url: str, name: str, size: tuple[int, int], dark: bool = False) -> np.ndarray:
        """A screenshot, also left in the folder as NAME.png: (height, width, 3) float32 from 0 to 1."""
        path = self._folder / f"{name}.png"
        colours = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        window = f"--window-size={size[0]},{size[1]}"
        command = [*self._command, *colours, window, f"--screenshot={path}", url]
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        pixels: np.ndarray = matplotlib.image.imread(path)[..., :3]
        assert pixels.shape == (size[1], size[0], 3)
        return pixels


def find_browser(folder: Path) -> Browser:
    """The browser of this machine; the test is skipped where there is none."""
    for name in _NAMES:
        if (program := shutil.which(name)) is not None:
            return Browser(program, folder)
    pytest.skip("no chromium on this machine (Debian: apt-get install --no-install-recommends chromium)")


def _single_spaced(line: str) -> str:
    return " ".join(line.split())


class _Texts(HTMLParser):
    """Texts of elements by id, as far as they are shown."""

    _ALONE = frozenset({"meta", "link", "br", "img", "input"})
    _LINES = frozenset({"tr", "div"})

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, str | None, bool]] = []  # tag, id, and whether it is hidden

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self._ALONE:
            return
        found = dict(attributes)
        hidden = "hidden" in found or tag == "noscript" or (bool(self._open) and self._open[-1][2])
        self._open.append((tag, found.get("id"), hidden))
        if (name := found.get("id")) is not None and not hidden:
            self.texts[name] = ""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag in self._LINES:
            self._say("\n")

    def handle_data(self, data: str) -> None:
        if not (self._open and self._open[-1][2]):
            self._say(f"{data} ")

    def _say(self, text: str) -> None:
        for _, name, _ in self._open:
            if name in self.texts:
                self.texts[name] += text
