"""LLMEngine over an engine that repeats the prompt."""

from collections.abc import Iterator

import pytest
from default_model import default_config, default_tokenizer
from scripted_client import EchoClient

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.frontend.llm_engine import LLMEngine
from vllm_obs.engine.frontend.outputs import CompletionOutput, RequestOutput
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted


@pytest.fixture
def client() -> EchoClient:
    return EchoClient()


@pytest.fixture
def engine(client: EchoClient) -> Iterator[LLMEngine]:
    engine = LLMEngine(default_config(), client, default_tokenizer(), MemoryRecorder())
    yield engine
    engine.shutdown()
    assert client.was_shut_down
    recorder = engine.recorder
    assert isinstance(recorder, MemoryRecorder)
    assert len(recorder.of(RequestSubmitted)) == len(recorder.of(RequestEnded)) == len(client.added)


def test_each_step_gives_the_text_so_far(engine: LLMEngine) -> None:
    engine.add_request("a", "Hello world", SamplingParams(max_tokens=2))
    steps = []
    while engine.has_unfinished_requests():
        steps += [(output.outputs[0].text, output.finished) for output in engine.step()]
    assert steps == [("Hello", False), ("Hello world", True)]
    assert engine.step() == []


def test_a_finished_request_is_whole(engine: LLMEngine) -> None:
    engine.add_request("a", "Hello world", SamplingParams(n=2, max_tokens=1, stop="lo"), stream=False)
    (output,) = engine.step()
    outputs = [CompletionOutput(i, "Hel", [19556], finish_reason="stop", stop_reason="lo") for i in range(2)]
    assert output == RequestOutput("a", "Hello world", [19556, 905], outputs, finished=True)


def test_a_stop_string_is_told_to_the_core(engine: LLMEngine, client: EchoClient) -> None:
    engine.add_request("a", "Hello world", SamplingParams(max_tokens=9, stop=" world"), stream=False)
    while engine.has_unfinished_requests():
        (*_,) = engine.step()
    assert client.aborts == [([client.added[0].request_id], FinishReason.STOP)]


def test_aborting_takes_a_request_out(engine: LLMEngine, client: EchoClient) -> None:
    engine.add_request("a", "Hello", SamplingParams(max_tokens=9))
    engine.step()
    engine.abort_request(["a", "unknown"])
    assert not engine.has_unfinished_requests()
    assert client.aborts == [([client.added[0].request_id], FinishReason.ABORT)]


def test_a_failed_request_raises_and_the_others_go_on(engine: LLMEngine, client: EchoClient) -> None:
    client.failing = {17}
    engine.add_request("bad", "!", SamplingParams(max_tokens=2))
    engine.add_request("good", "Hello", SamplingParams(max_tokens=1))
    with pytest.raises(RequestFailedError, match="not finite"):
        engine.step()
    assert [output.request_id for output in engine.step()] == ["good"]
    assert not engine.has_unfinished_requests()


def test_what_finished_beside_a_failed_request_comes_with_the_next_step(
    engine: LLMEngine, client: EchoClient
) -> None:
    client.failing = {17}
    for request_id, prompt in (("first", "Hello"), ("bad", "!"), ("worse", "!"), ("last", "Hello")):
        engine.add_request(request_id, prompt, SamplingParams(max_tokens=1))
    for _ in range(2):
        with pytest.raises(RequestFailedError):
            engine.step()
    assert [(output.request_id, output.finished) for output in engine.step()] == [("first", True), ("last", True)]
    assert not engine.has_unfinished_requests()


def test_ids_in_use_and_bad_prompts_are_refused(engine: LLMEngine) -> None:
    engine.add_request("a", "Hello", SamplingParams(max_tokens=1))
    for request_id, prompt in (("a", "x"), ("b", "")):
        with pytest.raises(RequestError):
            engine.add_request(request_id, prompt, SamplingParams())
    engine.step()
    assert not engine.has_unfinished_requests()


def test_open_seeds_are_the_same_in_every_run(engine: LLMEngine, client: EchoClient) -> None:
    other_client = EchoClient()
    other = LLMEngine(default_config(), other_client, default_tokenizer(), MemoryRecorder())
    for one in (engine, other):
        for request_id in "ab":
            one.add_request(request_id, "Hello", SamplingParams(max_tokens=1))
    seeds = [[request.sampling.seed for request in c.added] for c in (client, other_client)]
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]
    other.shutdown()
