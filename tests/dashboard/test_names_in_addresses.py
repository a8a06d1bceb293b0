"""Names from the address reach the Observer quoted, and addresses of traces stay one link."""

from typing import Any

import pytest
from inspector_pages import shown
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.source import Reading, Source, install, trace_address


class Noting(KeptSource):
    """Notes what is asked for."""

    def __init__(self) -> None:
        super().__init__(answers_of("incident"))
        self.asked: list[str] = []

    def get(self, path: str, **query: Any) -> Reading:
        self.asked.append(path)
        return super().get(path, **query)


@pytest.mark.parametrize(
    ("page", "name", "folder"),
    [
        ("profile", "profile", "profiles"),
        ("incidents", "incident", "incidents"),
        ("requests", "request", "requests"),
    ],
)
@pytest.mark.parametrize(
    ("given", "quoted"),
    [("../state?x#y", "..%2Fstate%3Fx%23y"), ("ü a", "%C3%BC%20a"), ("a\r\nb", "a%0D%0Ab"), ("a%2fb", "a%252fb")],
)
def test_name_of_the_address_is_quoted(page: str, name: str, folder: str, given: str, quoted: str) -> None:
    source = Noting()
    assert not shown(page, source, **{name: given}).exception
    assert f"/inspect/{folder}/{quoted}" in source.asked


def test_trace_address_is_one_link_whatever_is_in_it() -> None:
    install(Source(lambda: ""), "http://jaeger:16686/a(b)?q=1&t={trace_id}#x")
    assert trace_address("0af7") == "http://jaeger:16686/a%28b%29?q=1&t=0af7#x"
    assert (
        trace_address(") [x](http://evil")
        == "http://jaeger:16686/a%28b%29?q=1&t=%29%20%5Bx%5D%28http%3A%2F%2Fevil#x"
    )
    assert trace_address("") == ""
