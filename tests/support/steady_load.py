"""A load that goes on until its block is left: it preempts, is cut off, is refused, and repeats itself."""

import contextlib
import itertools
import threading
from collections.abc import Iterator

from load_client import CHAT, Asked, LoadClient

NUM_AT_A_TIME = 24
SHARED = [7] * 48
UNHURRIED = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": "sample_tokens=delay:0.02"}
"""The environment of a server whose steps wait more than they compute: what it shows under this load is the same,
and it leaves the cores to those who look at it, and to other tests."""


def _wave(number: int) -> list[Asked]:
    """Requests of all kinds: many that grow at once, so that blocks are short, and some that go wrong."""
    name = f"wave-{number}"
    grows = {"max_tokens": 90, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 4, "n": 2}
    left = {"prompt": [9, *SHARED], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    return [
        *(Asked(f"{name}-{n}", {"prompt": [*SHARED, 100 + n, number % 4096], **grows}) for n in range(26)),
        Asked(f"{name}-chat", chat, CHAT),
        Asked(f"{name}-one", {"prompt": SHARED, "max_tokens": 1}),
        Asked(f"{name}-left", left, leave_events=2),
        Asked(f"{name}-bad", {"prompt": "Hi", "temperature": 9}),
        Asked(f"{name}-lost", {"prompt": "Hi"}, "/v1/nothing"),
    ]


@contextlib.contextmanager
def steady_load(port: int) -> Iterator[None]:
    """Sends wave after wave to that port for the length of a `with` block."""
    ended = threading.Event()
    failures: list[Exception] = []

    def send() -> None:
        client = LoadClient(port, NUM_AT_A_TIME)
        try:
            for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
                client.run(_wave(number))
        except Exception as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join(60)
    assert not sender.is_alive()
    assert failures == []
