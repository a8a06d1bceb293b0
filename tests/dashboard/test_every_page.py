"""Every page, in every kept state of a server: it is drawn without an exception and says how the server is."""

import pytest
from inspector_pages import shown, texts
from observer_states import STATES, KeptSource, answers_of

from vllm_obs.dashboard.page_list import PAGES

NAMES = [page.name for page in PAGES]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", NAMES)
def test_page_is_drawn_in_every_state(name: str, state: str) -> None:
    page = shown(name, KeptSource(answers_of(state)))
    assert not page.exception


@pytest.mark.parametrize("name", NAMES)
def test_page_says_that_the_server_went_away(name: str) -> None:
    page = shown(name, KeptSource(answers_of("saturated"), is_gone=True))
    assert not page.exception
    assert "does not answer" in texts(page)


@pytest.mark.parametrize("name", NAMES)
def test_page_teaches_where_there_never_was_a_server(name: str) -> None:
    page = shown(name, KeptSource({}))
    assert not page.exception
    assert "vllm-obs serve" in texts(page)


@pytest.mark.parametrize("name", NAMES)
def test_page_of_a_recording_stands_still(name: str) -> None:
    page = shown(name, KeptSource(answers_of("saturated"), is_live=False))
    assert not page.exception
