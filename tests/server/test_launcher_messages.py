"""What the launcher and its API servers tell each other fits an order, and is checked when it is read."""

import select

import msgpack
import pytest
from fake_engine import FACTS

from vllm_obs.engine.codec import write_fields
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.launcher_messages import (
    DEAD,
    DIGEST_BYTES,
    EXPECTED,
    MAX_SUSPECTS,
    SERVING,
    STARTING,
    SUSPECTS,
    EngineNews,
    ServerStatus,
    read_digests,
    read_suspects,
)

NEWS = [
    EngineNews(0, 0, 12, STARTING),
    EngineNews(3, 2, 12, SERVING, facts=FACTS._replace(phases=[])),
    EngineNews(3, 2, 12, DEAD, "EngineCore_DP3 was killed by SIGKILL", is_its_own=True),
    EngineNews(3, 2, 12, EXPECTED, seconds=4.5),
]


@pytest.mark.parametrize("news", NEWS, ids=[news.state for news in NEWS])
def test_news_arrive_as_they_were_told(news: EngineNews) -> None:
    assert EngineNews.read(msgpack.unpackb(msgpack.packb(news.to_wire()))) == news


def test_the_longest_news_fit_an_order() -> None:
    facts = FACTS._replace(model="/long" * 2000, phases=[("x" * 100, 1.0)] * 100)
    news = EngineNews(63, 2**31, 2**22, SERVING, "because " * 1000, facts=facts)
    assert len(msgpack.packb(["ENGINE", news.to_wire()])) < select.PIPE_BUF - 4
    assert EngineNews.read(news.to_wire()).facts == facts._replace(model=facts.model[:512], phases=[])


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [0, 0, 12, "starting"],
        [0, 0, 12, "starting", "", 0, 0.0, None],
        [0, 0, "12", "starting", "", False, 0.0, None],
        [0, 0, 12, "flying", "", False, 0.0, None],
        [0, 0, 12, "serving", "", False, 0.0, None],
        [0, 0, 12, "dead", "", False, 0.0, write_fields(FACTS)],
        [0, 0, 12, "serving", "", False, 0.0, [1, 2]],
    ],
)
def test_what_is_no_news_is_refused(payload: object) -> None:
    with pytest.raises((WireError, ValueError)):
        EngineNews.read(payload)


def test_a_status_arrives_as_it_was_told() -> None:
    status = ServerStatus("ready", 5, 4, 3, [(0, 2), (1, 7)])
    assert ServerStatus.read(msgpack.unpackb(msgpack.packb(write_fields(status)))) == status


@pytest.mark.parametrize("payload", [None, ["ready"], ["great", 1, 2, 3, 4], ["ready", 1, 2, 3, "4"], {"a": 1}])
def test_what_is_no_status_is_refused(payload: object) -> None:
    with pytest.raises((WireError, ValueError)):
        ServerStatus.read(payload)


def test_as_many_suspects_as_may_be_fit_a_message_and_arrive() -> None:
    rows = [[bytes([number]) * DIGEST_BYTES, True, False] for number in range(MAX_SUSPECTS)]
    message = msgpack.packb([SUSPECTS, rows])
    assert len(message) < select.PIPE_BUF - 4
    assert read_suspects(msgpack.unpackb(message)[1]) == [Suspect(*row) for row in rows]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [b"d" * DIGEST_BYTES],
        [[b"d" * DIGEST_BYTES, True]],
        [[b"d" * DIGEST_BYTES, True, 1]],
        [[b"short", True, True]],
        [["d" * DIGEST_BYTES, True, True]],
        [[b"d" * DIGEST_BYTES, True, True]] * (MAX_SUSPECTS + 1),
    ],
)
def test_what_are_no_suspects_is_refused(payload: object) -> None:
    with pytest.raises(ValueError, match=r"suspect|digest"):
        read_suspects(payload)


@pytest.mark.parametrize("payload", [None, [b"short"], [[b"d" * DIGEST_BYTES]], [b"d" * DIGEST_BYTES] * 65])
def test_what_are_no_digests_is_refused(payload: object) -> None:
    with pytest.raises(ValueError, match=r"suspects|digest"):
        read_digests(payload)


def test_facts_of_the_test_are_whole() -> None:
    assert isinstance(FACTS, EngineFacts)
