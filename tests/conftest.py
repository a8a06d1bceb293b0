"""What holds for every test of the tree."""

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ends_with_pytest import watch_pytest

from vllm_obs.engine.worker.threads import limit_spinning

limit_spinning()  # before any test imports torch: tests share their cores with the servers they start
watch_pytest()


def pytest_collection_finish() -> None:
    """Ten thousand tests that the collector of garbage need not look through again and again: they all stay."""
    gc.freeze()


@pytest.fixture
def frozen() -> Iterator[None]:
    """For tests of what thaws all that is frozen when it ends, as a server does that ends well."""
    yield
    gc.freeze()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name is short, for runs: a socket's whole path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="vo-") as path:
        yield Path(path)
