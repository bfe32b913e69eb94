from __future__ import annotations

import tempfile

import pytest

from dbelief.script.deep_folder import warn_of_deep_folder


@pytest.mark.parametrize(("length", "warnings"), [(75, 0), (76, 1)])
def test_a_temporary_folder_that_is_too_deep_for_a_loader_is_named(
    length: int, warnings: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "/" + "t" * (length - 1)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    warn_of_deep_folder()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == warnings
    assert all(f"TMPDIR has more than 75 bytes ({folder}): a data loader" in line for line in lines)
