"""Every step is told once to everyone who listens, with what each of its rows was; what is missing is told too."""

import asyncio
from typing import Any

import pytest
from fact_stream import ENGINE, FactStream
from hypothesis import given, settings
from hypothesis import strategies as st
from random_run import random_runs
from stream_client import Event, StreamClient

from vllm_obs.telemetry import step_feed
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import StepPlanned
from vllm_obs.telemetry.step_feed import StepFeed
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_rows import DECODE, PREFILL, RECOMPUTE
from vllm_obs.telemetry.view import BaseView, RecordsLost, Source, SourceGone

often = settings(max_examples=60, deadline=None, database=None)
ROWS = 19
Rows = list[tuple[str, int, int, int]]


class Told(BaseView):
    """A feed over a run that is told fact by fact."""

    def __init__(self) -> None:
        self.observer = Observer("run", clock=lambda: 10**12)
        self.observer.add_views([self])
        self.state = self.observer.state
        self.feed: StepFeed | None = None

    def step_closed(self, step: StepFacts) -> None:
        if self.feed is not None:
            self.feed.step_closed(step)

    def lost(self, source: Source, num: int) -> None:
        if self.feed is not None and source.engine:
            self.feed.lost()

    @property
    def engine(self) -> EngineState:
        return self.state.engines.get("0") or self.state.past_engines[-1]

    def apply(self, facts: Any) -> None:
        for source, fact in facts:
            self.state.apply(source, fact)

    def client(self, since: int = -1) -> StreamClient:
        if self.feed is None:
            self.feed = StepFeed(self.observer, self.engine)
        return StreamClient(self.feed.hub, self.feed.open(self.engine, since, "live"))

    def tell(self) -> None:
        assert self.feed is not None
        self.feed.tell(self.engine)


def steps_in(events: list[Event]) -> dict[int, Rows]:
    """The rows of each step with the names that the client has by then."""
    names: dict[int, str] = {}
    found: dict[int, Rows] = {}
    for name, content in events:
        if name == "hello":
            names = {}
        if name != "steps":
            continue
        new = {int(number): request_id for number, request_id in content["names"].items()}
        assert all(names.get(number, request_id) == request_id for number, request_id in new.items())
        names |= new
        for step in content["steps"]:
            assert step[0] not in found, "told twice"
            rows = step[ROWS]
            found[step[0]] = [(names[rows[at]], *rows[at + 1 : at + 4]) for at in range(0, len(rows), 4)]
    return found


def of_kind(events: list[Event], kind: str) -> list[Any]:
    return [content for name, content in events if name == kind]


def rows_of(stream: FactStream) -> dict[int, Rows]:
    """What each row was, from the whole run at once."""
    found: dict[int, Rows] = {}
    computed: dict[str, int] = {}
    high: dict[str, int] = {}
    for planned in [record for record in stream.records if isinstance(record, StepPlanned)]:
        for request_id in planned.preempted_ids:
            high[request_id] = max(high.get(request_id, 0), computed[request_id])
        cached = dict(zip(planned.admitted_ids, planned.admitted_cached_tokens, strict=True))
        rows: Rows = []
        columns = (planned.request_ids, planned.num_computed_tokens, planned.num_scheduled_tokens)
        for request_id, begin, num_tokens in zip(*columns, strict=True):
            num_prompt = stream.sequences[request_id].submitted.num_prompt_tokens
            kind = RECOMPUTE if begin < high.get(request_id, 0) else PREFILL if begin < num_prompt else DECODE
            rows.append((request_id, kind, num_tokens, cached.get(request_id, 0)))
            computed[request_id] = begin + num_tokens
        found[planned.step] = rows
    return found


@often
@given(random_runs(), st.data())
def test_whoever_comes_whenever_gets_every_step_once_with_its_rows(stream: FactStream, data: Any) -> None:
    facts = stream.facts
    looks = data.draw(st.sets(st.integers(2, len(facts))))
    comes_at = data.draw(st.integers(2, len(facts)))

    async def scenario() -> None:
        told = Told()
        told.apply(facts[:2])
        early, late = told.client(), None
        for index, fact in enumerate(facts[2:], 2):
            if index == comes_at:
                late = told.client(0)
                await late.read()
            told.apply([fact])
            if index in looks:
                told.tell()
        late = late or told.client(0)
        told.tell()
        expected = rows_of(stream)
        for client in (early, late):
            await client.read()
            assert steps_in(client.events) == {step: expected[step] for step in expected}
            assert not of_kind(client.events, "gone")

    asyncio.run(scenario())


def test_a_step_is_told_with_its_moments_and_levels() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        await client.read()
        told.apply(stream.submit("a"))
        begun_at = stream.now
        told.apply(stream.step({"a": 10}))
        told.apply(stream.step())
        told.tell()
        await client.read()
        events = client.events
        assert events[0] == (
            "hello",
            {
                "engine": "0", "pid": 200, "run": "run", "is_live": True, "max_num_batched_tokens": 2048,
                "max_num_seqs": 64, "num_blocks": 64, "block_size": 4,
                "clock": {"monotonic_at": 10**12, "wall_at": 10**12},
            },
        )  # fmt: skip
        assert [name for name, _ in events] == ["hello", "steps", "state", "steps"]
        assert events[1][1] == {"names": {}, "num_skipped": 0, "steps": []}
        assert events[2][1] == {"state": "live", "age_seconds": None, "under_way": None}
        ran, empty = events[3][1]["steps"]
        planned_at = begun_at + 20_000
        prepared_at = planned_at + 40_000
        forwarded_at = prepared_at + 900_000
        sampled_at = forwarded_at + 55_000
        assert ran == [
            1, begun_at, planned_at, forwarded_at, sampled_at, sampled_at + 40_000, 1, 0, "", "underloaded",
            3, 0, 61, 0, None, prepared_at, forwarded_at, forwarded_at, "", [1, PREFILL, 10, 0],
            planned_at + 10_000, forwarded_at + 50_000,
        ]  # fmt: skip
        assert empty[3:6] + empty[15:] == [None] * 6 + ["", [], None, None]
        assert events[3][1]["names"] == {"1": "a"}

    asyncio.run(scenario())


def test_a_preempted_row_computes_again_up_to_where_it_was() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        for request_id in ("a", "b"):
            told.apply(stream.submit(request_id))
        told.apply(stream.step({"a": 6}))
        told.apply(stream.step({"a": 4, "b": 10}))
        told.apply(stream.step({"a": 1}, preempted=["b"]))
        told.apply(stream.step({"a": 1, "b": 1}, cached={"b": 8}))
        told.apply(stream.step({"b": 2}))
        told.tell()
        expected = {
            1: [("a", PREFILL, 6, 0)],
            2: [("a", PREFILL, 4, 0), ("b", PREFILL, 10, 0)],
            3: [("a", DECODE, 1, 0)],
            4: [("a", DECODE, 1, 0), ("b", RECOMPUTE, 1, 0)],
            5: [("b", RECOMPUTE, 2, 0)],
        }
        assert rows_of(stream) == expected
        for each in (client, told.client(0)):
            await each.read()
            assert steps_in(each.events) == expected

    asyncio.run(scenario())


def test_one_that_was_decoding_when_it_was_preempted_computes_again() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        for request_id in ("a", "b"):
            told.apply(stream.submit(request_id))
        for rows in ({"a": 10, "b": 10}, {"a": 1, "b": 1}):
            told.apply(stream.step(rows))
        told.apply(stream.step({"a": 1}, preempted=["b"]))
        told.apply(stream.step({"a": 1, "b": 12}))
        told.apply(stream.step({"b": 1}))
        told.tell()
        await client.read()
        found = steps_in(client.events)
        assert found[2] == [("a", DECODE, 1, 0), ("b", DECODE, 1, 0)]
        assert (found[4], found[5]) == ([("a", DECODE, 1, 0), ("b", RECOMPUTE, 12, 0)], [("b", DECODE, 1, 0)])

    asyncio.run(scenario())


def test_a_number_given_for_another_client_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_feed, "NUM_NEWEST", 1)

    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        for request_id in ("a", "b"):
            told.apply(stream.submit(request_id))
        told.apply(stream.step({"a": 10, "b": 10}))
        told.apply(stream.step({"a": 1}))
        early = told.client()
        await early.read()
        await told.client(0).read()
        told.apply(stream.step({"a": 1, "b": 1}))
        told.tell()
        await early.read()
        found = steps_in(early.events)
        assert found == {2: [("a", DECODE, 1, 0)], 3: [("a", DECODE, 1, 0), ("b", DECODE, 1, 0)]}

    asyncio.run(scenario())


def test_one_that_begins_anew_gets_the_newest_and_one_that_goes_on_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_feed, "NUM_NEWEST", 5)
    monkeypatch.setattr(step_feed, "MAX_KEPT", 8)
    monkeypatch.setattr(step_feed, "STEPS_AN_EVENT", 3)

    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        for _ in range(20):
            told.apply(stream.step())
        for since, steps, num_skipped in ((-1, range(16, 21), 0), (17, range(18, 21), 0), (4, range(13, 21), 8)):
            client = told.client(since)
            events = await client.read()
            assert list(steps_in(events)) == list(steps)
            assert sum(content["num_skipped"] for content in of_kind(events, "steps")) == num_skipped
            assert max(len(content["steps"]) for content in of_kind(events, "steps")) <= 3

    asyncio.run(scenario())


def test_steps_that_are_no_longer_kept_are_said_to_be_gone() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        stream.num_steps = 40
        told.apply(stream.step())
        events = await told.client(10).read()
        assert (of_kind(events, "gone"), list(steps_in(events))) == ([{"num_gone": 30}], [41])

    asyncio.run(scenario())


def test_steps_that_were_lost_are_said_to_be_gone() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        told.apply(stream.submit("a"))
        client = told.client()
        told.apply(stream.step({"a": 10}))
        for _ in range(3):
            stream.step({"a": 1})
        told.apply([(ENGINE, RecordsLost(9))])
        told.apply(stream.step({"a": 1}))
        told.tell()
        told.apply(stream.step({"a": 1}))
        told.tell()
        events = await client.read()
        assert [name for name, _ in events] == ["hello", "steps", "state", "gone", "steps", "steps"]
        assert (of_kind(events, "gone"), list(steps_in(events))) == ([{"num_gone": 3}], [1, 5, 6])

    asyncio.run(scenario())


def test_more_steps_than_one_event_holds_are_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_feed, "MAX_NEW_STEPS", 4)

    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        for num_steps in (6, 1):
            for _ in range(num_steps):
                told.apply(stream.step())
            told.tell()
        events = await client.read()
        assert [content["num_skipped"] for content in of_kind(events, "steps")] == [0, 2, 0]
        assert list(steps_in(events)) == [3, 4, 5, 6, 7]

    asyncio.run(scenario())


def test_another_engine_process_begins_with_a_new_hello() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        told.apply(stream.submit("a"))
        told.apply(stream.step({"a": 10}))
        told.apply([(ENGINE, SourceGone())])
        restarted = FactStream(engine=ENGINE._replace(pid=201, generation=2001), now=stream.now)
        told.apply(restarted.describe(max_num_seqs=8))
        told.apply(restarted.submit("b"))
        told.apply(restarted.step({"b": 10}))
        told.tell()
        events = await client.read()
        assert [name for name, _ in events] == ["hello", "steps", "state", "steps", "hello", "steps"]
        assert [content["pid"] for content in of_kind(events, "hello")] == [200, 201]
        assert [content["names"] for content in of_kind(events, "steps")[1:]] == [{"1": "a"}, {"2": "b"}]

    asyncio.run(scenario())


def test_an_engine_that_describes_itself_later_is_told_of_again() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.change_state("awake"))
        client = told.client()
        told.apply(stream.describe())
        told.tell()
        told.tell()
        hellos = of_kind(await client.read(), "hello")
        assert [hello["max_num_batched_tokens"] for hello in hellos] == [0, 2048]

    asyncio.run(scenario())


def test_an_unheard_feed_keeps_nothing() -> None:
    async def scenario() -> None:
        stream, told = FactStream(), Told()
        told.apply(stream.describe())
        client = told.client()
        client.leave()
        for _ in range(5):
            told.apply(stream.step())
        assert told.feed is not None
        assert len(told.feed._closed) == 0
        told.feed.rest()
        assert list(steps_in(await told.client().read())) == [1, 2, 3, 4, 5]

    asyncio.run(scenario())
