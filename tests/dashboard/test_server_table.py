"""Over several servers each is told by its name, and the address says which one the pages are of."""

from typing import Any

import pytest
from inspector_pages import texts
from observer_states import KeptSource, answers_of
from streamlit.testing.v1 import AppTest

from vllm_obs.dashboard.figures import number
from vllm_obs.dashboard.source import Source, current, install, servers
from vllm_obs.telemetry.inspect_client import InspectorError

SCRIPT = """
from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.header import header
from vllm_obs.dashboard.pages.overview import render
url_state.carry()
if header():
    render()
"""


class NamedSource(KeptSource):
    """Answers as they were kept, under a name."""

    def __init__(self, state: str, name: str) -> None:
        super().__init__(answers_of(state))
        self.name = name


class NoServer(Source):
    """Nobody is there."""

    def __init__(self) -> None:
        def locate() -> str:
            raise InspectorError("no server")

        super().__init__(locate, name="c:8000")


def overview(*sources: Source, **query: str) -> AppTest:
    install(sources[0], others=sources[1:])
    page = AppTest.from_string(SCRIPT, default_timeout=30)
    for key, value in query.items():
        page.query_params[key] = value
    return page.run()


def table(page: AppTest) -> dict[str, list[Any]]:
    """The columns of the servers."""
    (found,) = [frame.value for frame in page.dataframe if "Server" in frame.value.columns]
    return {str(name): list(found[name]) for name in found.columns}


@pytest.fixture
def several() -> tuple[Source, ...]:
    return (NamedSource("idle", "a:8000"), NamedSource("saturated", "b:8000"), NoServer())


def test_all_servers_stand_side_by_side(several: tuple[Source, ...]) -> None:
    columns = table(overview(*several))
    assert columns["Server"] == ["a:8000", "b:8000", "c:8000"]
    engine = answers_of("saturated")["/inspect/state"]["engines"][0]
    assert columns["Waiting"] == ["0", number(engine["num_waiting"]), "–"]
    assert columns["Health"][2] == "no answer"
    assert columns["Verdict"][1] == answers_of("saturated")["/inspect/verdict&window=1m"]["word"].replace("_", " ")


def test_the_address_says_whose_figures_stand_below(several: tuple[Source, ...]) -> None:
    idle, saturated = texts(overview(*several)), texts(overview(*several, server="1"))
    engine = answers_of("saturated")["/inspect/state"]["engines"][0]
    assert f"Running {number(engine['num_running'])}" in saturated
    assert f"Running {number(engine['num_running'])}" not in idle
    assert "/scheduler?server=1&engine=0" in saturated


@pytest.mark.parametrize("chosen", ["7", "x", "-1"])
def test_a_number_that_names_no_server_is_the_first(several: tuple[Source, ...], chosen: str) -> None:
    assert texts(overview(*several, server=chosen)) == texts(overview(*several))


def test_one_server_has_neither_table_nor_choice() -> None:
    page = overview(NamedSource("idle", ""), server="3")
    assert [frame for frame in page.dataframe if "Server" in frame.value.columns] == []
    assert current() is servers()[0]
