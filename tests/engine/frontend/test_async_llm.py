"""AsyncLLM over a scripted engine: streams, cancelling, lagging readers, and the engine's death."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from default_model import default_config, default_tokenizer
from scripted_client import ScriptedAsyncClient
from step_outputs import Row

from vllm_obs.engine.errors import EngineDeadError, EngineLostError, RequestError, RequestFailedError
from vllm_obs.engine.frontend import async_input_processor, engine_losses, output_processor
from vllm_obs.engine.frontend.arrival import Arrival
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.output_processor import NUM_STEPS_TO_BEGIN
from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.engine.frontend.poison_book import OpenRequest, fingerprint
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted

LENGTH = FinishReason.LENGTH


class Stage:
    """An AsyncLLM, the engine behind it, and what was recorded."""

    def __init__(self, client: ScriptedAsyncClient, stream_interval: int = 1) -> None:
        self.client = client
        self.recorder = MemoryRecorder()
        self.llm = AsyncLLM(default_config(stream_interval), client, default_tokenizer(), self.recorder)
        self.llm.start()

    def id(self, position: int = 0) -> str:
        return self.client.added[position].request_id

    @property
    def endings(self) -> list[str]:
        return [ending.finish_reason for ending in self.recorder.records if isinstance(ending, RequestEnded)]

    async def reading(self, prompt: str | list[int] = "hi", **options: Any) -> "Reading":
        """A task that collects all deltas of a request, once the engine has it."""
        params = SamplingParams(**options.pop("params", {}))
        before = len(self.client.added)
        reading = Reading(self.llm.generate(prompt, params, "r", **options))
        async with asyncio.timeout(5):
            while len(self.client.added) < before + params.n and not reading.task.done():
                await asyncio.sleep(0)
        return reading


class Reading:
    """A task over a generator, and what it read so far."""

    def __init__(self, deltas: Any) -> None:
        self.deltas: list[SequenceDelta] = []
        self.task = asyncio.ensure_future(self._read(deltas))

    async def _read(self, deltas: Any) -> list[SequenceDelta]:
        async for delta in deltas:
            self.deltas.append(delta)
        return self.deltas

    async def end(self) -> list[SequenceDelta]:
        return await asyncio.wait_for(self.task, 5)

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)


def played(
    play: Callable[[Stage], Awaitable[None]], client: ScriptedAsyncClient | None = None, stream_interval: int = 1
) -> Stage:
    """Run a play on a fresh loop, shut down, and check the ledger: each sequence sent has one ending."""

    async def run() -> Stage:
        stage = Stage(client or ScriptedAsyncClient(), stream_interval)
        try:
            await asyncio.wait_for(play(stage), 20)
        finally:
            await stage.llm.shutdown()
        return stage

    stage = asyncio.run(run())
    submitted = [fact.request_id for fact in stage.recorder.records if isinstance(fact, RequestSubmitted)]
    ended = [fact.request_id for fact in stage.recorder.records if isinstance(fact, RequestEnded)]
    assert sorted(submitted) == sorted(ended)
    assert stage.llm.num_in_flight == 0
    assert stage.client.was_shut_down
    return stage


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_request_streams_its_deltas_to_its_end() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading("Hello", received_at=1, parsed_at=2, rendered_at=3, external_id="abc")
        for token_id, ending in ((905, -1), (17, LENGTH)):
            stage.client.say(Row(stage.id(), [token_id], ending))
            await settle()
        deltas = await reading.end()
        assert [delta.text for delta in deltas] == [" world", "!"]
        assert deltas[0].prompt_token_ids == [19556]
        assert deltas[-1].finish_reason == "length"

    stage = played(play)
    assert stage.client.aborts == []
    (submitted,) = stage.recorder.of(RequestSubmitted)
    assert isinstance(submitted, RequestSubmitted)
    assert (submitted.external_id, submitted.received_at, submitted.parsed_at) == ("abc", 1, 2)
    assert submitted.rendered_at == 3 < submitted.tokenized_at <= submitted.submitted_at


def test_four_sequences_are_interleaved_and_each_ends() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading(params={"n": 4})
        for ending in (-1, LENGTH):
            stage.client.say(*(Row(stage.id(i), [17 + i], ending) for i in range(4)))
            await settle()
        await reading.end()
        assert [reading.text(i) for i in range(4)] == ["!!", '""', "##", "$$"]
        assert [delta.index for delta in reading.deltas] == [0, 1, 2, 3, 0, 1, 2, 3]

    stage = played(play)
    assert [request.sampling.sequence_index for request in stage.client.added] == [0, 1, 2, 3]
    assert len({request.sampling.seed for request in stage.client.added}) == 1


def test_a_reader_that_lags_gets_merged_deltas() -> None:
    async def play(stage: Stage) -> None:
        accepted = await stage.llm.submit("hi", SamplingParams(logprobs=None), "r")
        for position in range(500):
            stage.client.say(Row(stage.id(), [17], LENGTH if position == 499 else -1))
        while stage.llm.num_in_flight:
            await asyncio.sleep(0)
        deltas = [delta async for delta in accepted]
        await accepted.aclose()
        assert [(d.text, len(d.token_ids), d.finish_reason) for d in deltas] == [("!" * 500, 500, "length")]
        assert deltas[0].prompt_token_ids == [6004]

    played(play)


def test_without_streaming_there_is_one_delta() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading(stream=False)
        for ending in (-1, -1, LENGTH):
            stage.client.say(Row(stage.id(), [17], ending))
            await settle()
        assert [delta.text for delta in await reading.end()] == ["!!!"]

    played(play)


def test_the_stream_interval_gathers_tokens() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading()
        for position in range(6):
            stage.client.say(Row(stage.id(), [17], LENGTH if position == 5 else -1))
            await settle()
        assert [len(delta.token_ids) for delta in await reading.end()] == [1, 4, 1]

    played(play, stream_interval=4)


def test_a_stop_string_tells_the_core_to_stop() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading(params={"stop": "!"})
        stage.client.say(Row(stage.id(), [905]))
        stage.client.say(Row(stage.id(), [17]))
        stage.client.say(Row(stage.id(), [17]))
        (*_, last) = await reading.end()
        assert (reading.text(), last.finish_reason, last.stop_reason) == (" world", "stop", "!")

    stage = played(play)
    assert stage.client.aborts == [([stage.id()], FinishReason.STOP)]
    assert stage.endings == ["stop"]


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_cancelling_the_reader_aborts_once(num_tokens: int) -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading()
        for _ in range(num_tokens):
            stage.client.say(Row(stage.id(), [17]))
            await settle()
        reading.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading.task
        await settle()
        stage.client.say(Row(stage.id(), [17]))
        stage.client.say(Row(stage.id(), [], FinishReason.ABORT))
        await settle()
        assert stage.llm.num_unknown_rows == 2

    stage = played(play)
    assert stage.client.aborts == [([stage.id()], FinishReason.ABORT)]
    assert stage.endings == ["abort"]


def test_closing_aborts_only_what_still_runs() -> None:
    async def play(stage: Stage) -> None:
        async with await stage.llm.submit("hi", SamplingParams(n=3), "r") as accepted:
            stage.client.say(Row(stage.id(1), [17], LENGTH))
            delta = await anext(accepted)
            assert (delta.index, delta.finish_reason) == (1, "length")
        await accepted.aclose()

    stage = played(play)
    assert stage.client.aborts == [([stage.id(0), stage.id(2)], FinishReason.ABORT)]
    assert sorted(stage.endings) == ["abort", "abort", "length"]


def test_closing_a_generator_early_aborts() -> None:
    async def play(stage: Stage) -> None:
        deltas = stage.llm.generate("hi", SamplingParams(), "r")
        first = asyncio.ensure_future(anext(deltas))
        while not stage.client.added:
            await asyncio.sleep(0)
        stage.client.say(Row(stage.id(), [17]))
        await first
        await deltas.aclose()

    assert played(play).endings == ["abort"]


def test_abort_by_handle_ends_every_request_of_that_name() -> None:
    async def play(stage: Stage) -> None:
        readings = [await stage.reading(), await stage.reading()]
        await stage.llm.abort("nobody")
        await stage.llm.abort("r")
        assert [(await reading.end())[-1].finish_reason for reading in readings] == ["abort", "abort"]

    stage = played(play)
    assert [reason for _, reason in stage.client.aborts] == [FinishReason.ABORT] * 2


def test_a_bad_request_never_reaches_the_engine() -> None:
    async def play(stage: Stage) -> None:
        with pytest.raises(RequestError, match="temperature"):
            await anext(stage.llm.generate("hi", SamplingParams(temperature=3), "r"))
        with pytest.raises(RequestError, match="empty"):
            await stage.llm.submit("", SamplingParams(), "r")

    stage = played(play)
    assert stage.client.added == []
    assert list(stage.recorder.records) == []


def test_a_full_engine_refuses_the_whole_request() -> None:
    async def play(stage: Stage) -> None:
        with pytest.raises(RequestFailedError, match="full") as caught:
            await stage.llm.submit("hi", SamplingParams(n=3), "r")
        assert caught.value.reason == "under_pressure"
        await settle()
        assert len(stage.client.aborts) == 1

    assert played(play, ScriptedAsyncClient(refuse_after=1)).endings == ["abort"] * 3


def test_the_death_of_the_engine_is_an_error_in_every_stream() -> None:
    async def play(stage: Stage) -> None:
        readings = [await stage.reading(), await stage.reading(params={"n": 2})]
        stage.client.say(Row(stage.id(), [17]))
        stage.client.dead_cause = "killed by signal 9"
        stage.client.fail(EngineDeadError("killed by signal 9"))
        lasts = [(await reading.end())[-1] for reading in readings]
        assert [last.error and last.error.reason for last in lasts] == ["engine_dead"] * 2
        assert readings[0].text() == "!"
        assert await asyncio.wait_for(stage.llm.wait_dead(), 1) == "killed by signal 9"
        with pytest.raises(EngineDeadError, match="signal 9"):
            await stage.llm.submit("hi", SamplingParams(), "r")

    assert played(play).endings == ["error"] * 3


def test_a_broken_output_is_the_death_of_the_reader_and_said_so() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading()
        stage.client.fail(ValueError("torn"))
        assert (await reading.end())[-1].finish_reason == "error"
        assert "reads the engine's outputs" in (stage.llm.dead_cause or "")
        assert (await stage.llm.losses.wait(0)).num_open == 1

    played(play)


def test_a_reader_that_fails_at_a_loss_is_not_gone_in_silence() -> None:
    def fail(loss: EngineLostError) -> None:
        raise RuntimeError("planted")

    async def play(stage: Stage) -> None:
        lost, kept = await stage.reading([5, 6]), await stage.reading([7, 8])
        stage.llm.losses.lose = fail  # type: ignore[method-assign]
        stage.client.fail(EngineLostError("it was killed", 1, [stage.id(0)]))
        for reading in (lost, kept):
            assert (await reading.end())[-1].finish_reason == "error"
        assert "reads the engine's outputs" in await asyncio.wait_for(stage.llm.wait_unread(), 5)
        assert "reads the engine's outputs" in await asyncio.wait_for(stage.llm.wait_dead(), 5)

    assert played(play).endings == ["error"] * 2


def test_the_loss_of_one_engine_ends_its_own_streams_and_the_others_go_on() -> None:
    async def play(stage: Stage) -> None:
        lost, kept = await stage.reading([5, 6]), await stage.reading([7, 8])
        waiting = asyncio.ensure_future(stage.llm.losses.wait(1))
        stage.client.fail(EngineLostError("it was killed", 1, [stage.id(0), "nobody"]))
        last = (await lost.end())[-1]
        assert (str(last.error), last.error and last.error.reason) == ("it was killed", "engine_dead")
        assert await waiting == ("it was killed", 1)
        assert (stage.llm.num_in_flight, stage.llm.dead_cause) == (1, None)
        stage.client.say(Row(stage.id(1), [17], LENGTH))
        assert (await kept.end())[-1].finish_reason == "length"
        stage.llm.let_in("its successor", stage.client.engines[0]._replace(engine_index=1))
        assert not stage.llm.losses._told_of(1).done()
        assert (len(stage.llm.losses.poison), stage.client.aborts) == (0, [])

    assert played(play).endings == ["error", "length"]


def test_streams_of_a_crash_end_though_nobody_can_be_found_to_blame() -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("planted")

    async def play(stage: Stage) -> None:
        stage.llm.losses.may_blame = lambda engine_index, cause: True
        reading = await stage.reading([5, 6])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_losses, "fingerprints", fail)
            stage.client.fail(EngineLostError("it crashed", 0, [stage.id(0)]))
            assert (await reading.end())[-1].finish_reason == "error"

    played(play)


def test_shutting_down_ends_open_streams_with_its_reason() -> None:
    async def play(stage: Stage) -> None:
        reading = await stage.reading()
        await stage.llm.shutdown()
        last = (await reading.end())[-1]
        assert last.error is not None
        assert last.error.reason == "shutting_down"

    assert played(play).endings == ["error"]


def test_many_sequences_leave_room_for_others_and_end_with_an_abort_meanwhile() -> None:
    async def play(stage: Stage) -> None:
        submission = asyncio.create_task(stage.llm.submit([5], SamplingParams(n=100), "many"))
        while not stage.client.added:
            await asyncio.sleep(0)
        assert len(stage.client.added) < 100
        await stage.llm.abort("many")
        stream = await submission
        assert len(stage.client.added) < 100
        assert stage.llm.num_in_flight == 0
        await stream.aclose()

    played(play)


def test_the_request_that_ran_when_the_engine_crashed_is_named_and_not_the_one_that_waited() -> None:
    async def play(stage: Stage) -> None:
        ran = await stage.reading([5, 6])
        waited = await stage.reading([7, 8])
        for _ in range(NUM_STEPS_TO_BEGIN + 1):
            stage.client.say(Row(stage.id(0), [17]))
        stage.llm.losses.may_blame = lambda engine_index, cause: cause == "it crashed"
        stage.client.fail(EngineLostError("it crashed", 0, [stage.id(0), stage.id(1)]))
        await asyncio.gather(ran.end(), waited.end())
        assert await stage.llm.losses.wait(0) == ("it crashed", 2)
        with pytest.raises(RequestFailedError, match="not run again"):
            await stage.llm.submit([5, 6], SamplingParams(), "r")
        again = await stage.reading([7, 8])
        stage.client.say(Row(stage.id(2), [17], LENGTH))
        await again.end()

    played(play)


def test_what_was_open_in_a_crash_is_forgiven_once_it_ended_well_and_known_by_a_digest_made_in_a_thread() -> None:
    seen: list[str] = []

    def spy(token_ids: list[int], params: SamplingParams) -> bytes:
        seen.append(threading.current_thread().name)
        return fingerprint(token_ids, params)

    async def play(stage: Stage) -> None:
        poison = stage.llm.losses.poison
        params = SamplingParams(n=2)
        await run_well(stage, [5, 6])
        assert seen == [], "as long as no engine has crashed"
        poison.crashed([OpenRequest(str(token), [token, 6], params, 1) for token in (5, 9)])
        await run_well(stage, [5, 6])
        assert len(poison) == 1
        poison.crashed([OpenRequest("9", [9, 6], params, 1)])
        with pytest.raises(RequestFailedError, match="not run again"):
            await stage.llm.submit([9, 6], params, "r")
        assert len(stage.client.added) == 4

    async def run_well(stage: Stage, prompt: list[int]) -> None:
        before = len(stage.client.added)
        reading = await stage.reading(prompt, params={"n": 2})
        stage.client.say(*(Row(stage.id(before + index), [17], LENGTH) for index in range(2)))
        await reading.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(async_input_processor, "fingerprint", spy)
        played(play)
    assert [name.partition("_")[0] for name in seen] == ["tokenizer"] * 2


@pytest.mark.parametrize("broken", ["open_sequence", "recorder"])
def test_a_request_that_breaks_while_it_is_taken_on_leaves_nothing(broken: str) -> None:
    def planted(*args: object) -> None:
        raise RuntimeError("planted")

    async def play(stage: Stage) -> None:
        config = default_config()
        config = replace(config, scheduler=replace(config.scheduler, max_num_queued_reqs=8))
        llm = AsyncLLM(config, stage.client, default_tokenizer(), MemoryRecorder())
        llm.start()
        with pytest.MonkeyPatch.context() as patch:
            if broken == "open_sequence":
                patch.setattr(output_processor, "OpenSequence", planted)
            else:
                patch.setattr(Arrival, "submitted", planted)
            with pytest.raises(RuntimeError, match="planted"):
                await llm.submit("hi", SamplingParams(n=3), "r")
        await settle()
        assert (len(llm.queue), llm.num_in_flight, llm.num_queued_deltas, llm._handles) == (0, 0, 0, {})
        assert stage.client.added == []
        await llm.shutdown()

    played(play)
