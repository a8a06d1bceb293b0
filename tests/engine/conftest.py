"""Fixtures for tests that start processes: where children find the fakes, and a short place for their sockets."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture
def child_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children can be started from the modules of tests/support."""
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def run_base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory for run directories; socket paths may have 107 bytes at most."""
    base = Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp"))
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))
    yield base
    shutil.rmtree(base, ignore_errors=True)
