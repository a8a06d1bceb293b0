"""What changes, put onto the map that a client began with, is the map as it is, whatever happened meanwhile."""

import asyncio
from typing import Any

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream
from hypothesis import given, settings
from hypothesis import strategies as st
from random_run import RandomRun
from stream_client import DrawnBlocks, StreamClient

from vllm_obs.telemetry import block_feed
from vllm_obs.telemetry.block_feed import BlockFeed, glance, map_at, map_document
from vllm_obs.telemetry.block_picture import MAX_SHOWN_REFS, draw
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.inspect_reply import InspectError
from vllm_obs.telemetry.records import BlocksChanged, BlocksKeyframe, Record
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone

often = settings(max_examples=60, deadline=None, database=None)
Facts = list[tuple[Source, Fact]]


@pytest.fixture(autouse=True)
def redraw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_feed, "REDRAW_SECONDS", 0.0)


async def settled(feed: BlockFeed) -> None:
    while feed._drawing is not None:
        await asyncio.sleep(0)


async def fresh(engine: EngineState) -> DrawnBlocks:
    """The blocks as somebody sees them who comes now."""
    drawn = DrawnBlocks()
    drawn.take("map", map_document(engine, await draw(engine.blocks.copied()), glance(engine)))
    return drawn


def engine_after(stream: FactStream) -> EngineState:
    state = RunState()
    for source, record in stream.facts:
        state.apply(source, record)
    return state.engines["0"]


class Watched:
    """An engine whose blocks a client draws from a feed."""

    def __init__(self) -> None:
        self.state = RunState()
        self.feed = BlockFeed()
        self.drawn = DrawnBlocks()
        self.client: StreamClient | None = None
        self.names: list[str] = []

    @property
    def engine(self) -> EngineState:
        return self.state.engines.get("0") or self.state.past_engines[-1]

    def apply(self, facts: Any) -> None:
        for source, fact in facts:
            self.state.apply(source, fact)

    async def look(self) -> None:
        """The client draws all that can be told now."""
        if self.client is None:
            self.client = StreamClient(self.feed.hub, self.feed.open(self.engine))
        for _ in range(2):
            self.feed.tell(self.engine)
            await settled(self.feed)
        for name, content in await self.client.read():
            self.names.append(name)
            self.drawn.take(name, content)

    async def check(self) -> None:
        await self.look()
        now = await fresh(self.engine)
        assert (self.drawn.states, self.drawn.refs, self.drawn.owners) == (now.states, now.refs, now.owners)
        assert self.drawn.told == now.told


@st.composite
def lossy_runs(draw: Any) -> tuple[Facts, set[int]]:
    """The facts of a run with keyframes in it, some of them lost, and after which of them somebody looks."""
    run = RandomRun(draw, FactStream(num_blocks=256))
    run.stream.describe()
    actions = ("_submit", "_submit", *["_step"] * 6, "_abort", "keyframes")
    for action in draw(st.lists(st.sampled_from(actions), min_size=3, max_size=40)):
        getattr(run.stream if action == "keyframes" else run, action)()
    facts: Facts = list(run.stream.facts)
    if draw(st.booleans()):
        begin = draw(st.integers(2, len(facts)))
        num = draw(st.integers(1, 12))
        lost = [fact for fact in facts[begin : begin + num] if fact[0] == ENGINE]
        kept = [fact for fact in facts[begin : begin + num] if fact[0] != ENGINE]
        facts[begin : begin + num] = [*kept, (ENGINE, RecordsLost(len(lost)))]
        facts += run.stream.keyframes()
    return facts, draw(st.sets(st.integers(0, len(facts))))


@often
@given(lossy_runs())
def test_changes_on_a_map_are_the_map_as_it_is(run: tuple[Facts, set[int]]) -> None:
    facts, looks = run

    async def scenario() -> None:
        watched = Watched()
        watched.apply(facts[:1])
        for index, fact in enumerate(facts[1:]):
            watched.apply([fact])
            if index in looks:
                await watched.check()
        await watched.check()
        watched.feed.close()

    asyncio.run(scenario())


def test_a_run_is_told_by_its_changes_alone() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        await watched.check()
        for request_id in ("a", "b"):
            watched.apply(stream.submit(request_id))
        watched.apply(stream.step({"a": 10, "b": 10}))
        await watched.check()
        assert watched.drawn.owners[:6] == ["a", "a", "a", "b", "b", "b"]
        watched.apply(stream.step({"a": 1}, preempted=["b"]))
        await watched.check()
        assert watched.drawn.owners[:6] == ["a", "a", "a", "", "", ""]
        assert watched.drawn.states[:6] == [2, 2, 2, 1, 1, 0]
        watched.apply(stream.step({"a": 1}))
        watched.apply(stream.step({"a": 1, "b": 2}, cached={"b": 8}))
        await watched.check()
        assert watched.drawn.refs[:4] == [2, 2, 1, 0]
        assert watched.drawn.owners[:2] == ["a", "a"]
        watched.apply(stream.finish("a"))
        await watched.check()
        assert watched.drawn.owners[:2] == ["b", "b"]
        assert watched.names == ["map", "changes", "changes", "changes", "changes"]

    asyncio.run(scenario())


def test_nothing_is_told_where_nothing_changes() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        watched.apply(stream.submit("a"))
        watched.apply(stream.step({"a": 10}))
        await watched.look()
        for _ in range(3):
            watched.apply(stream.step())
            await watched.look()
        assert watched.names == ["map"]

    asyncio.run(scenario())


def test_a_client_that_comes_later_gets_the_map_as_it_is_and_then_the_same_changes() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        await watched.look()
        watched.apply(stream.submit("a"))
        watched.apply(stream.step({"a": 10}))
        client, drawn = StreamClient(watched.feed.hub, watched.feed.open(watched.engine)), DrawnBlocks()
        watched.apply(stream.step({"a": 5}))
        await watched.look()
        for event in await client.read():
            drawn.take(*event)
        assert [name for name, _ in client.events] == ["map", "changes"]
        assert drawn == watched.drawn

    asyncio.run(scenario())


def test_a_loss_is_told_and_the_map_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        watched.apply(stream.submit("a"))
        watched.apply(stream.step({"a": 10}))
        await watched.look()
        monkeypatch.setattr(block_feed, "REDRAW_SECONDS", 3600.0)
        watched.apply(stream.step({"a": 8}))
        stream.step({"a": 8})
        watched.apply([(ENGINE, RecordsLost(3))])
        await watched.look()
        assert (watched.names, watched.drawn.told["is_exact"]) == (["map", "changes"], False)
        assert (watched.drawn.owners.count("a"), (await fresh(watched.engine)).owners.count("a")) == (3, 5)
        monkeypatch.setattr(block_feed, "REDRAW_SECONDS", 0.0)
        await watched.check()
        assert watched.names == ["map", "changes", "map"]
        watched.apply(stream.keyframes())
        watched.apply(stream.step({"a": 1}))
        watched.apply(stream.keyframes())
        await watched.check()
        assert (watched.drawn.told["is_exact"], watched.drawn.owners.count("a")) == (True, 7)

    asyncio.run(scenario())


def test_so_much_that_changes_at_once_is_told_as_a_map() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        await watched.look()
        watched.apply(stream.submit("a", num_prompt_tokens=200))
        watched.apply(stream.step({"a": 200}))
        await watched.check()
        assert watched.names == ["map", "map"]

    asyncio.run(scenario())


def test_a_dead_engine_is_shown_as_its_last_step_left_it_and_the_next_one_afresh() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        watched.apply(stream.submit("a"))
        watched.apply(stream.step({"a": 10}))
        await watched.look()
        before = watched.drawn.owners
        watched.apply([(ENGINE, SourceGone())])
        await watched.look()
        assert (watched.drawn.owners, watched.drawn.told["levels"]["num_active"]) == (before, 3)
        await watched.look()
        restarted = FactStream(engine=ENGINE._replace(pid=201, generation=2001))
        watched.apply(restarted.describe())
        await watched.check()
        assert watched.client is not None
        assert [content["pid"] for name, content in watched.client.events if name == "map"] == [200, 200, 201]

    asyncio.run(scenario())


def test_a_past_step_is_shown_as_it_was_or_refused() -> None:
    async def scenario() -> None:
        stream = FactStream()
        stream.describe()
        stream.submit("a")
        stream.step({"a": 10})
        then = await fresh(engine_after(stream))
        stream.finish("a")
        stream.submit("b")
        stream.step({"b": 10})
        engine = engine_after(stream)
        # What a released sequence gave back in the same step counts as what that step left.
        drawn = DrawnBlocks()
        drawn.take("map", await map_at(engine, 0))
        assert (drawn.states, drawn.told["levels"]) == (
            [0] * 64,
            {"num_active": 0, "num_cached": 0, "num_free": 64},
        )
        with pytest.raises(InspectError, match="has run 2 steps; 99 is not one of them") as refused:
            await map_at(engine, 99)
        assert refused.value.status == 404
        for step in (2, None):
            drawn.take("map", await map_at(engine, step))
            assert drawn == await fresh(engine)
        assert then.owners != drawn.owners
        engine.blocks.lost()
        with pytest.raises(InspectError, match="blocks are kept from step 3 on; 1 is before that") as refused:
            await map_at(engine, 1)
        assert refused.value.status == 404

    asyncio.run(scenario())


def test_many_references_are_shown_as_255() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.apply(FactStream().describe())
        await watched.look()
        ids = [f"r-{number}" for number in range(MAX_SHOWN_REFS + 10)]
        shared: Record = BlocksChanged(1, ids, [[0] for _ in ids], [[] for _ in ids], [1] * len(ids))
        watched.apply([(ENGINE, shared)])
        await watched.check()
        assert (watched.drawn.refs[0], watched.drawn.owners[0]) == (255, "r-0")
        watched.apply([(ENGINE, BlocksChanged(2, ids[:9], [[]] * 9, [[0]] * 9, [0] * 9))])
        await watched.check()
        assert watched.drawn.owners[0] == "r-9"

    asyncio.run(scenario())


def test_a_table_put_right_by_a_keyframe_changes_hands() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        for request_id in ("a", "b"):
            watched.apply(stream.submit(request_id))
        watched.apply(stream.step({"a": 10, "b": 10}))
        await watched.check()
        stream.blocks.tables["a"], stream.blocks.tables["b"] = [3, 4, 5], [0, 1, 2, 60]
        watched.apply(stream.keyframes())
        watched.apply([(ENGINE, BlocksKeyframe(1, 60, [1], [b""]))])
        await watched.check()
        assert watched.drawn.owners[:6] == ["b", "b", "b", "a", "a", "a"]
        assert watched.drawn.owners[60] == "b"

    asyncio.run(scenario())


def shared(*request_ids: str, step: int = 1) -> tuple[Source, Fact]:
    """Each of these gets block 0."""
    num = len(request_ids)
    return ENGINE, BlocksChanged(step, list(request_ids), [[0]] * num, [[]] * num, [1] * num)


def freed(*request_ids: str, step: int = 2) -> tuple[Source, Fact]:
    num = len(request_ids)
    return ENGINE, BlocksChanged(step, list(request_ids), [[]] * num, [[0]] * num, [0] * num)


def test_one_that_comes_back_between_two_looks_stands_behind_the_others() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.apply(FactStream().describe())
        watched.apply([shared("a", "b")])
        await watched.check()
        assert watched.drawn.owners[0] == "a"
        watched.apply([freed("a"), shared("a", step=3)])
        await watched.check()
        assert watched.drawn.owners[0] == "b"

    asyncio.run(scenario())


def test_a_block_that_an_older_table_grows_into_changes_hands() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.apply(FactStream().describe())
        others: Record = BlocksChanged(1, ["a", "b"], [[1], [2]], [[], []], [0, 0])
        watched.apply([(ENGINE, others), shared("c", "d")])
        await watched.check()
        assert watched.drawn.owners[0] == "c"
        for request_id in ("b", "a"):
            watched.apply([shared(request_id, step=3)])
            await watched.check()
            assert watched.drawn.owners[0] == request_id
        watched.apply([(ENGINE, BlocksChanged(4, ["a"], [[]], [[0, 1]], [0]))])
        await watched.check()
        assert watched.drawn.owners[:3] == ["b", "", "b"]

    asyncio.run(scenario())


def test_the_state_of_the_engine_is_told_to_those_who_watch_its_blocks() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.apply(FactStream().describe())
        await watched.look()
        watched.feed.tell_state("stalled")
        await watched.look()
        assert watched.client is not None
        assert watched.client.events[-1] == ("state", {"state": "stalled"})

    asyncio.run(scenario())


def test_an_unheard_feed_keeps_nothing() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.apply(FactStream().describe())
        await watched.look()
        feed = watched.feed
        assert feed._picture is not None
        feed.open(watched.engine)
        feed.rest()
        kept: tuple[object, ...] = (feed._picture, feed._engine, feed._drawing)
        assert kept == (None, None, None)

    asyncio.run(scenario())


def test_names_of_ended_sequences_go() -> None:
    async def scenario() -> None:
        stream, watched = FactStream(), Watched()
        watched.apply(stream.describe())
        await watched.look()
        for number in range(50):
            watched.apply(stream.submit(f"r-{number}"))
            watched.apply(stream.step({f"r-{number}": 10}))
            watched.apply(stream.finish(f"r-{number}"))
            await watched.look()
        picture = watched.feed._picture
        assert picture is not None
        assert (picture.names, picture._numbers, picture._tables, picture._others) == ({}, {}, {}, {})
        assert API_SERVER in {source for source, _ in stream.facts}

    asyncio.run(scenario())
