"""What several end-to-end files start with, and which of them come first."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server
from shared_server import SharedServer

SHARED = "default_server"
_shared = SharedServer()
_files_that_share: set[Path] = set()


@pytest.fixture
def base() -> Iterator[Path]:
    """A short place for run directories: a socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def default_server() -> Server:
    """A server of the default model in float32, with tools, which other files ask too; see SharedServer."""
    return _shared.running()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that share a server come first, one after another, so that it lives as short as it can."""
    _files_that_share.update(item.path for item in items if SHARED in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: item.path not in _files_that_share)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last of them it ends."""
    if item.path in _files_that_share and (nextitem is None or nextitem.path not in _files_that_share):
        _shared.end()
