"""However many ids, models, methods, paths and programs clients name, a scrape has the same series and size."""

import re
from collections.abc import Iterator

import pytest
from load_client import Asked, LoadClient
from observed_server import NAME, ObservedServer, await_that, synthetic

NUM_NAMES, MANY_NAMES = 200, 4000
"""Of each kind; the latter make 20,000 requests with five names of their own each."""
VALUE = re.compile(r"[-+.\deE]+$|NaN$|\+Inf$")


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    with synthetic() as running:
        yield running


def wave(begin: int, num_names: int) -> list[Asked]:
    """Everything a client can name, each time another."""
    asked = []
    for number in range(begin, begin + num_names):
        name = f"name-{number}"
        program = {"User-Agent": f"program/{number}", "X-Forwarded-For": name, "Host": f"host-{number}"}
        asked += [
            Asked(name, {"model": name, "prompt": "a", "user": name}, headers=program),
            Asked(name, b"", f"/{name}/{name}", "GET", program),
            Asked(name, b"", f"/v1/responses/{name}", "GET", program),
            Asked(name, {"prompt": "a", "max_tokens": 1, "model": NAME, "cache_salt": name}, headers=program),
            Asked(name, b"", "/v1/models", f"M{number}", program),
        ]
    return asked


def series_of(server: ObservedServer) -> set[str]:
    """All series of a scrape, without their values."""
    return {VALUE.sub("", line) for line in server.exposition().splitlines() if not line.startswith("#")}


def num_counted(server: ObservedServer) -> float:
    """How many requests are in the metrics; before the first there is no series of them."""
    return sum(value for _, value in server.samples().get("http_requests_total", []))


@pytest.mark.parametrize("num_names", [NUM_NAMES, pytest.param(MANY_NAMES, marks=pytest.mark.long)])
def test_new_names_make_no_new_series(server: ObservedServer, num_names: int) -> None:
    client = LoadClient(server.port, 8)
    counted = num_counted(server)
    client.run(wave(10_000, 8))
    await_that(lambda: num_counted(server) >= counted + 40)
    await_that(lambda: "vllm_obs_event_loop_lag_seconds_bucket" in server.samples())  # told once a second
    before = series_of(server)
    seen = client.run(wave(20_000, num_names))
    assert {one.status for one in seen} == {200, 400, 404}
    await_that(lambda: num_counted(server) >= counted + 40 + len(seen))
    assert series_of(server) == before
    shown = server.exposition()
    assert not re.search(r"name-\d|program/|host-\d|M2\d\d\d\d", shown)
