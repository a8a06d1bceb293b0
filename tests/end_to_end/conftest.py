"""What several end-to-end files start with, and which of them come first."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server
from shared_server import SharedServer

_shared = {"float32_server": SharedServer("--dtype", "float32"), "default_server": SharedServer()}
"""By the fixture that a file asks for it by."""
_sharing: dict[Path, str] = {}


@pytest.fixture
def base() -> Iterator[Path]:
    """A short place for run directories: a socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def default_server() -> Server:
    """A server of the default model, with tools, which other files ask too; see SharedServer."""
    return _shared["default_server"].running()


@pytest.fixture(scope="module")
def float32_server() -> Server:
    """The same in float32, whose tokens do not depend on who is beside them."""
    return _shared["float32_server"].running()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that share a server come first, one after another, so that it lives as short as it can."""
    for item in items:
        _sharing.update((item.path, name) for name in _shared if name in getattr(item, "fixturenames", ()))
    places = [*_shared, None]
    items.sort(key=lambda item: places.index(_sharing.get(item.path)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last of them it ends."""
    name = _sharing.get(item.path)
    if name is not None and (nextitem is None or _sharing.get(nextitem.path) != name):
        _shared[name].end()
