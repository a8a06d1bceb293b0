"""The pages' server lets its port go at once, and Streamlit is never asked to judge a foreign origin."""

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from starlette.types import Receive, Scope, Send
from streamlit import net_util
from streamlit.web.server.starlette.starlette_websocket import _is_origin_allowed

from vllm_obs.cli.listener import bind_port
from vllm_obs.dashboard import serve
from vllm_obs.dashboard.source import Source
from vllm_obs.telemetry.inspect_guard import InspectGuard

SECONDS = 10.0


async def plain_app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def _signals() -> Iterator[None]:
    """What is done at signals is as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def connected(port: int) -> socket.socket:
    """A connection, as soon as somebody listens there: what is accepted has the options that the listener had."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def served(pages: serve.Pages, browse: Callable[[int], None], is_beside: bool = False) -> int:
    """The port at which they were until `browse` had them end."""
    with bind_port("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        browser = threading.Thread(target=browse, args=(port,))
        browser.start()
        pages.run(listener, is_beside)
        browser.join(SECONDS)
    return port


@pytest.mark.usefixtures("_signals")
def test_port_can_be_had_again_at_once_though_a_browser_still_holds_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "build_app", lambda *_: plain_app)
    pages = serve.Pages(Source(lambda: ""), "127.0.0.1")
    held: list[socket.socket] = []

    def browse(port: int) -> None:
        held.append(connected(port))
        held[0].sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        while not held[0].recv(4096).endswith(b"ok"):
            pass
        pages.end()

    port = served(pages, browse)
    try:
        bind_port("127.0.0.1", port).close()
    finally:
        held[0].close()


@pytest.mark.usefixtures("_signals")
def test_pages_beside_a_server_do_not_end_before_it_when_a_terminal_interrupts_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "build_app", lambda *_: plain_app)
    pages = serve.Pages(Source(lambda: ""), "127.0.0.1")
    answers: list[bytes] = []

    def browse(port: int) -> None:
        for _ in range(2):
            with connected(port) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                answers.append(browser.recv(4096))
            os.kill(os.getpid(), signal.SIGINT)
        pages.end()

    served(pages, browse, is_beside=True)
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 2


def test_origin_that_the_guard_lets_in_is_streamlits_own_without_asking_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda url, **_: asked.append(url))
    hosts = ["127.0.0.1", "127.0.0.1:8501", "LOCALHOST:8501", "localhost.", "[::1]:8501", "10.0.0.5:8501",
             "127.0.0.1/x", "127.0.0.1:8501?x", "evil.example"]  # fmt: skip
    origins = [f"{scheme}://{host}" for scheme in ("http", "HTTP", "https") for host in [*hosts, "localhost:8501"]]
    guard = InspectGuard(plain_app, "0.0.0.0")
    let_in = 0
    for host, origin in itertools.product(hosts, [*origins, "null", ""]):
        scope = {"type": "websocket", "headers": [(b"host", host.encode()), (b"origin", origin.encode())]}
        if guard._refusal(scope) is None:
            let_in += 1
            assert _is_origin_allowed(origin, host)
    assert (let_in, asked) == (6, [])
