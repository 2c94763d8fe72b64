"""What all tests of data share."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Decoded images and drawn partitions go to a folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: folder)
    return folder
