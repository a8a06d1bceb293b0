"""A real server told to stop while streams run for longer than they may: each is told, and so is who waits."""

import json
import signal
import time
from collections.abc import Iterator

import pytest
from either_model import EITHER_MODEL
from serving import Server

TEXT = "/v1/completions"
LONG = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
LIGHT = ("--max-model-len", "4096", "--kv-cache-memory-bytes", str(1 << 29))
DRAIN_SECONDS = 1.0
NUM_STREAMS = 3


@pytest.fixture(params=EITHER_MODEL)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*LIGHT, *request.param, "--shutdown-timeout", str(DRAIN_SECONDS))
    try:
        server.wait_ready()
        yield server
        assert server.leftovers() == []
    finally:
        server.close()


def open_streams(server: Server) -> list[Iterator[str]]:
    streams = [server.data(TEXT, LONG) for _ in range(NUM_STREAMS)]
    for stream in streams:
        next(stream)
    return streams


def reasons(streams: list[Iterator[str]]) -> list[object]:
    """What the very last of each stream says: an error, behind which no `[DONE]` comes."""
    return [json.loads(list(stream)[-1])["error"]["reason"] for stream in streams]


def test_streams_longer_than_the_drain_end_with_an_error_and_exit_1(server: Server) -> None:
    streams = open_streams(server)
    server.process.send_signal(signal.SIGTERM)
    told_at = time.monotonic()
    assert reasons(streams) == ["shutting_down"] * NUM_STREAMS
    assert DRAIN_SECONDS < time.monotonic() - told_at < 3 * (DRAIN_SECONDS + 1)
    assert server.process.wait(20) == 1
    assert time.monotonic() - told_at < 3 * (DRAIN_SECONDS + 1)


def test_the_second_signal_does_not_wait_for_the_drain(server: Server) -> None:
    streams = open_streams(server)
    server.process.send_signal(signal.SIGTERM)
    while server.request("GET", "/readyz")[0] == 200:
        pass
    server.process.send_signal(signal.SIGTERM)
    told_at = time.monotonic()
    assert reasons(streams) == ["shutting_down"] * NUM_STREAMS
    assert server.process.wait(20) == 1
    assert time.monotonic() - told_at < 3 * 1.0
