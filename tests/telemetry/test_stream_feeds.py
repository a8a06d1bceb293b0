"""Nobody who listens holds up the Observer or the others, and nothing is done while nobody listens."""

import asyncio
from typing import Any

import pytest
from fact_stream import ENGINE, FactStream
from stream_client import StreamSocket

from vllm_obs.telemetry import inspect_events
from vllm_obs.telemetry.inspect_events import MAX_CLIENTS
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import ProcessExited, ProcessStarted, StallBegun
from vllm_obs.telemetry.stream_feeds import StreamFeeds
from vllm_obs.telemetry.view import SourceGone


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class Fed:
    """Feeds over a run that is told by a test, round by round."""

    def __init__(self) -> None:
        self.observer = Observer("run")
        self.stalls: list[StallBegun] = []
        self.feeds = StreamFeeds(self.observer, lambda: self.stalls)
        self.observer.add_views([self.feeds])
        self.stream = FactStream()
        self.apply(self.stream.describe())

    def apply(self, facts: Any) -> None:
        for source, fact in facts:
            self.observer.state.apply(source, fact)

    def word(self) -> str:
        state = self.observer.state
        return self.feeds.word_of(state.engines.get("0") or state.past_engines[-1])

    async def round(self) -> None:
        self.feeds.tell()
        await settled()


def test_one_who_does_not_read_is_dropped_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_events, "SEND_TIMEOUT_SECONDS", 0.05)

    async def scenario() -> None:
        fed = Fed()
        for open_stream in (lambda: fed.feeds.steps("0", -1), lambda: fed.feeds.blocks("0")):
            slow, quick = StreamSocket(open_stream(), takes=False), StreamSocket(open_stream())
            await settled()
            for number in range(4):
                fed.apply(fed.stream.submit(f"{id(slow)}-{number}"))
                fed.apply(fed.stream.step({f"{id(slow)}-{number}": 10}))
                for _ in range(2):
                    await fed.round()
            await asyncio.wait_for(slow.task, 10)
            assert len([name for name, _ in quick.events if name in ("steps", "changes")]) >= 4
            assert fed.feeds.num_listeners == 1
            await quick.leave()
        assert fed.feeds.num_listeners == 0

    asyncio.run(scenario())


def test_only_so_many_may_listen_to_each_stream() -> None:
    async def scenario() -> None:
        fed = Fed()
        socks = [StreamSocket(fed.feeds.blocks("0")) for _ in range(MAX_CLIENTS)]
        await settled()
        with pytest.raises(InspectError, match="16 clients listen already, which is the limit") as refused:
            fed.feeds.blocks("0")
        assert refused.value.status == 503
        steps = StreamSocket(fed.feeds.steps("0", -1))
        await settled()
        assert [name for name, _ in steps.events] == ["hello", "steps", "state"]
        fed.feeds.close()
        await asyncio.wait_for(asyncio.gather(steps.task, *(sock.task for sock in socks)), 10)
        assert all(sock.events[0][0] == "map" for sock in socks)
        with pytest.raises(InspectError, match="the Observer is ending"):
            fed.feeds.steps("0", -1)

    asyncio.run(scenario())


def test_a_feed_that_fails_lets_its_clients_go_and_the_other_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        fed = Fed()
        steps, blocks = StreamSocket(fed.feeds.steps("0", -1)), StreamSocket(fed.feeds.blocks("0"))
        await settled()
        monkeypatch.setattr(fed.feeds._blocks["0"], "tell", lambda engine: 1 / 0)
        for _ in range(2):
            await fed.round()
        await asyncio.wait_for(blocks.task, 10)
        fed.apply(fed.stream.step())
        await fed.round()
        assert [name for name, _ in steps.events] == ["hello", "steps", "state", "steps"]
        await steps.leave()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["a stream failed; later failures are not told"]


def test_the_state_says_who_stalls_dies_and_was_told_to_end() -> None:
    async def scenario() -> None:
        fed = Fed()
        fed.apply([(ENGINE, ProcessStarted(ENGINE.role, ENGINE.pid, 1, 1))])
        assert fed.word() == "live"
        stall = StallBegun("1", "Worker_TP0", 7, -1, "executing", 3, "T", "It stands still.", 1, 11)
        fed.stalls.append(stall)
        assert fed.word() == "live"
        fed.stalls.append(stall._replace(engine="0"))
        assert fed.word() == "stalled"
        fed.apply([(ENGINE, SourceGone())])
        assert fed.word() == "dead"
        fed.apply([(fed.stream.api, ProcessExited(ENGINE.role, ENGINE.pid, 0, 5, True))])
        assert fed.word() == "ended"

    asyncio.run(scenario())


def test_the_state_names_the_step_that_is_under_way() -> None:
    async def scenario() -> None:
        fed = Fed()
        steps = StreamSocket(fed.feeds.steps("0", -1))
        await settled()
        fed.apply(fed.stream.submit("a"))
        fed.apply(fed.stream.step({"a": 10}, is_answered=False))
        for _ in range(4):
            await fed.round()
        states = [content["under_way"] for name, content in steps.events if name == "state"]
        assert [under and (under["step"], under["num_requests"]) for under in states] == [None, (1, 1)]
        await steps.leave()

    asyncio.run(scenario())


def test_a_stall_is_told_in_the_round_that_notices_it() -> None:
    async def scenario() -> None:
        fed = Fed()
        steps = StreamSocket(fed.feeds.steps("0", -1))
        await settled()
        await fed.round()
        fed.stalls.append(StallBegun("0", "Worker_TP0", 7, -1, "executing", 3, "T", "It stands still.", 1, 11))
        await fed.round()
        await fed.round()
        fed.stalls.clear()
        await fed.round()
        states = [content["state"] for name, content in steps.events if name == "state"]
        assert states == ["live", "stalled", "live"]
        await steps.leave()

    asyncio.run(scenario())


def test_there_is_nothing_to_tell_while_nobody_listens() -> None:
    async def scenario() -> None:
        fed = Fed()
        assert not fed.feeds.is_heard
        sock = StreamSocket(fed.feeds.steps("0", -1))
        await settled()
        assert fed.feeds.is_heard
        await fed.round()
        assert fed.feeds.is_heard
        await sock.leave()
        await settled()
        await fed.round()
        assert not fed.feeds.is_heard

    asyncio.run(scenario())
