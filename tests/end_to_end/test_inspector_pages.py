"""The inspector in a real browser, over a live server under load."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import View, browser, view
from observed_server import ObservedServer, observed
from shown_pages import dashboard
from steady_load import steady_load

from vllm_obs.dashboard.page_list import PAGES

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    """A server whose KV cache is short, with requests coming for as long as the tests take."""
    directory: Path = tmp_path_factory.mktemp("model")
    flags = ("--num-gpu-blocks-override", "128", "--max-num-seqs", "16", "--slo", "ttft=0.5,e2e=2")
    with observed(directory, *flags) as found, steady_load(found.port):
        yield found


@pytest.fixture(scope="module")
def address(server: ObservedServer) -> Iterator[str]:
    with dashboard("--url", f"http://127.0.0.1:{server.port}") as found:
        yield found


@pytest.fixture(scope="module")
def shown(address: str) -> Iterator[View]:
    with browser() as found:
        yield view(found)


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_page_is_drawn_with_live_data_and_nothing_from_outside(shown: View, address: str, name: str) -> None:
    shown.open(f"{address}/{name}")
    shown.wait_for(lambda: "tiny" in shown.text, "the model's name")
    assert shown.exceptions == []
    assert shown.errors == []
    assert shown.outside == []
