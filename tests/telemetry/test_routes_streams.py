"""The streams, a map and a queue are served of a live run, and the streams of a recording."""

import asyncio
import http.client
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import NUM_BLOCKS, ScriptedRun
from stream_client import DrawnBlocks, Event, StreamSocket, events_in
from withheld import Withheld

from vllm_obs.telemetry import observer_loop
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.stream_feeds import StreamFeeds

STEPS, BLOCKS = "/inspect/streams/steps", "/inspect/streams/blocks"
DEADLINE_SECONDS = 30.0
HOUR_NS = 3600 * 10**9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path_factory.mktemp("run")) as run:
        run.start()
        run.serve("done")
        run.submit("open")
        run.step("open")
        run.submit("waits", num_prompt=40)
        run.submit("behind")
        run.step("open", head_reason="kv_blocks")
        yield run


@pytest.fixture(scope="module")
def observer(run: ScriptedRun) -> Iterator[ObserverChild]:
    with observer_over(run.api.path.parent, stall_timeout=3600) as observer:
        yield observer


class HttpStream:
    """A stream that is read over a socket."""

    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self.reply = reply
        self.events: list[Event] = []

    def read_until(self, is_there: Callable[[list[Event]], bool]) -> list[Event]:
        """The events so far, once what is waited for is among them."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_there(self.events):
            assert time.monotonic() < deadline, self.events
            block = b""
            while not block.endswith(b"\n\n"):
                block += self.reply.readline()
            self.events += events_in(block)
        return self.events


@contextmanager
def streamed(observer: ObserverChild, path: str) -> Iterator[HttpStream]:
    connection = http.client.HTTPConnection(observer.host, observer.port, timeout=DEADLINE_SECONDS)
    connection.request("GET", path)
    reply = connection.getresponse()
    try:
        assert (reply.status, reply.getheader("cache-control")) == (200, "no-store")
        assert reply.getheader("content-type", "").startswith("text/event-stream")
        yield HttpStream(reply)
    finally:
        reply.close()
        connection.close()


def named(events: list[Event], name: str) -> list[dict[str, Any]]:
    return [content for each, content in events if each == name]


def test_what_happens_is_told_within_a_moment(run: ScriptedRun, observer: ObserverChild) -> None:
    with streamed(observer, STEPS) as steps, streamed(observer, BLOCKS) as blocks:
        steps.read_until(lambda events: bool(named(events, "state")))
        blocks.read_until(lambda events: bool(named(events, "map")))
        (hello,) = named(steps.events, "hello")
        assert (hello["is_live"], hello["num_blocks"]) == (True, NUM_BLOCKS)
        numbers = [step[0] for content in named(steps.events, "steps") for step in content["steps"]]
        assert numbers == list(range(1, run.step_number + 1))
        withheld, begun_at = Withheld(observer.child.pid, ()), time.monotonic()
        number = run.step("open", "behind")
        steps.read_until(lambda events: any(number == each[0] for each in last_steps(events)))
        blocks.read_until(lambda events: bool(named(events, "changes")))
        # A tenth of a second for steps and two for blocks.
        assert time.monotonic() - begun_at - withheld.seconds() < 3 * 0.3
        drawn = DrawnBlocks()
        for event in blocks.events:
            drawn.take(*event)
        shown = observer.get("/inspect/blocks/map")
        assert (drawn.states, drawn.refs) == (list(b64decode(shown["states"])), list(b64decode(shown["refs"])))
        assert set(drawn.owners) == {"", "open-0-0", "behind-0-0"}
        assert drawn.told == {key: shown[key] for key in ("levels", "is_exact")}
        steps.read_until(lambda events: len(named(events, "state")) >= 3)
        assert {state["state"] for state in named(steps.events, "state")} == {"live"}


def last_steps(events: list[Event]) -> list[Any]:
    found: list[Any] = [step for content in named(events, "steps")[-1:] for step in content["steps"]]
    return found


def test_a_map_of_a_past_step_is_served_or_refused(observer: ObserverChild) -> None:
    then = observer.get("/inspect/blocks/map?step=1")
    drawn = DrawnBlocks()
    drawn.take("map", then)
    assert (then["step"], then["engine"], then["num_blocks"]) == (1, "0", NUM_BLOCKS)
    assert [name for name in drawn.owners if name] == ["done-0-0", "done-0-0"]
    assert drawn.changed[:3] == [1, 1, 0]
    assert observer.ask("/inspect/blocks/map?engine=7").status == 404


def test_the_queue_of_a_step_is_who_waited_then(run: ScriptedRun, observer: ObserverChild) -> None:
    found = observer.get("/inspect/steps/5/queue")
    waiting = found.pop("waiting")
    planned_at = found.pop("planned_at")
    assert found == {"engine": "0", "step": 5, "head_reason": "kv_blocks", "num_waiting": 2}
    assert planned_at > 0
    # The second came 5 ms after the first, and a step is planned in one.
    assert waiting == [
        {
            "request_id": "waits-0-0", "place": 0, "reason": "kv_blocks", "seconds": 0.006,
            "num_prompt_tokens": 40, "state": "waiting",
        },
        {
            "request_id": "behind-0-0", "place": 1, "reason": "head_of_line", "seconds": 0.001,
            "num_prompt_tokens": 20, "state": "waiting",
        },
    ]  # fmt: skip
    assert observer.get("/inspect/steps/1/queue")["waiting"] == []
    assert observer.ask("/inspect/steps/999/queue").status == 404


@pytest.mark.parametrize("path", [f"{STEPS}?engine=7", f"{BLOCKS}?engine=7"])
def test_no_stream_of_an_unknown_engine(observer: ObserverChild, path: str) -> None:
    reply = observer.ask(path)
    assert (reply.status, reply.json["error"]["type"]) == (404, "not_found")


def test_the_streams_take_whole_numbers_only(observer: ObserverChild) -> None:
    assert observer.ask(f"{STEPS}?since=-2").status == 422
    assert observer.ask("/inspect/blocks/map?step=-1").status == 422


@asynccontextmanager
async def replaying(path: Path) -> AsyncIterator[StreamFeeds]:
    service = open_replay(path, "127.0.0.1", 0)
    running = asyncio.create_task(service.run())
    try:
        yield service.streams
    finally:
        service.end()
        await running
        await service.close()


def test_a_recording_gives_its_last_steps_and_blocks_and_then_says_that_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_loop, "HEARD_ROUND_SECONDS", 0.002)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with ScriptedRun(run_dir) as run:
        run.start()
        run.serve("done", num_output=305)
        run.submit("open")
        run.step("open")
    save_recording(run_dir, tmp_path / "saved.rec", HOUR_NS)

    async def scenario() -> None:
        async with replaying(tmp_path / "saved.rec") as streams:
            steps, blocks = StreamSocket(streams.steps("0", -1)), StreamSocket(streams.blocks("0"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while len(named(steps.events, "state")) < 4 or not blocks.events:
                    await asyncio.sleep(0.01)
            told = [step[0] for content in named(steps.events, "steps") for step in content["steps"]]
            assert told == list(range(7, 307))
            for stream in (steps, blocks):
                assert {state["state"] for state in named(stream.events, "state")} <= {"ended"}
            assert [name for name, _ in blocks.events if name != "state"] == ["map"]
            drawn = DrawnBlocks()
            drawn.take(*blocks.events[0])
            assert set(drawn.owners) == {"", "open-0-0"}
            assert named(steps.events, "hello")[0]["is_live"] is False

    asyncio.run(scenario())
