"""What several end-to-end files start with."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def base() -> Iterator[Path]:
    """A short place for run directories: a socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
