"""One command serves a real model through the whole stack, ends as asked, and leaves nothing behind."""

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from either_model import Flags, either_model
from openai import OpenAI
from pydantic import BaseModel
from responses_client import without_ids
from serving import MODEL, Server, serving

from vllm_obs.engine.frontend.llm import LLM
from vllm_obs.engine.sampling_params import SamplingParams

REFERENCES = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    "strict": True,
}
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


class Answer(BaseModel):
    """What is parsed."""

    verdict: Literal["yes", "no"]


@pytest.fixture(scope="module")
def server(float32_server: Server) -> Server:
    return float32_server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_openai_client_gets_a_sensible_chat_streamed_and_not(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_greedy_continuations_equal_the_references_over_http(server: Server) -> None:
    def continuation(reference: dict[str, Any]) -> list[int]:
        asked = {"prompt": reference["prompt_token_ids"], "max_tokens": 64, "temperature": 0, "ignore_eos": True}
        status, reply = server.request("POST", "/v1/completions", {**asked, "return_token_ids": True})
        assert status == 200, reply
        ids: list[int] = reply["choices"][0]["token_ids"]
        return ids

    with ThreadPoolExecutor(len(REFERENCES)) as pool:
        assert list(pool.map(continuation, REFERENCES)) == [r["output_token_ids"] for r in REFERENCES]


def test_responses_are_whole_streamed_parsed_and_gone_on_with(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Say hi", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(**asked)
    assert (whole.output_text, whole.status) == ("Hello there, welcome to my world!", "incomplete")
    with client.responses.create(**asked, stream=True) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    streamed = last.response.to_dict()
    cached = streamed["usage"]["input_tokens_details"]
    assert cached.pop("cached_tokens") == 16
    expected = whole.to_dict()
    expected["usage"]["input_tokens_details"].pop("cached_tokens")
    assert without_ids(streamed) == without_ids(expected)

    parsed = client.responses.parse(model=MODEL, input="Is water wet?", text_format=Answer, temperature=0)
    assert parsed.output_parsed is not None

    called = client.responses.create(
        model=MODEL,
        input="Weather?",
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
    )
    (call,) = called.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")

    gone_on = client.responses.create(
        model=MODEL,
        previous_response_id=called.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}],
        max_output_tokens=4,
    )
    assert gone_on.usage is not None
    assert called.usage is not None
    assert gone_on.usage.input_tokens > called.usage.input_tokens

    queued = client.responses.create(model=MODEL, input="Hi", background=True, max_output_tokens=4)
    deadline = time.monotonic() + 60
    while (done := client.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (queued.status, done.status in ("completed", "incomplete")) == ("queued", True)


@pytest.mark.long
def test_a_client_that_goes_away_gives_its_place_back() -> None:
    """test_departures.py tells the same of every state a client can leave in."""
    with serving("--max-num-seqs", "1") as server:
        stream = server.stream("/v1/completions", LONG)
        next(stream)
        stream.close()
        # The only place is free again long before 4000 tokens are made; the socket's deadline tells.
        status, _ = server.request("POST", "/v1/completions", {**LONG, "max_tokens": 4}, seconds=20)
    assert status == 200


def test_offline_chat_answers_through_the_same_engine() -> None:
    with LLM(dtype="float32", kv_cache_memory_bytes=1 << 29) as llm:
        params = SamplingParams(temperature=0, max_tokens=20)
        outputs = llm.chat([QUESTION, QUESTION], params, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == ["The capital of France is Paris."] * 2


def test_sigterm_lets_running_streams_finish_refuses_what_still_comes_and_exits_0() -> None:
    with serving() as server, ThreadPoolExecutor(12) as pool:
        asked = {**LONG, "max_tokens": 60}
        streams = [server.stream("/v1/completions", asked) for _ in range(10)]
        assert len([next(stream) for stream in streams]) == 10
        rest = pool.map(list, streams)
        server.process.send_signal(signal.SIGTERM)
        told_at = time.monotonic()
        while (ready := server.request("GET", "/readyz"))[0] == 200:
            assert time.monotonic() - told_at < 3
        assert (ready[0], ready[1]["error"]["reason"]) == (503, "shutting_down")
        assert 1 <= int(server.headers("/readyz")[1]["retry-after"]) <= 60
        for _ in range(5):  # whoever has not heard of it goes on asking
            status, reply = server.request("POST", "/v1/completions", {**LONG, "max_tokens": 1})
            assert (status, reply["error"]["reason"]) == (503, "shutting_down")
            assert server.request("GET", "/livez")[0] == 200
        assert [events[-1]["choices"][0]["finish_reason"] for events in rest] == ["length"] * 10
        assert server.process.wait(40) == 0


@pytest.mark.parametrize("backend", ["uni", pytest.param("mp", marks=pytest.mark.long)])
@either_model
def test_sigkill_of_the_api_server_leaves_no_process_and_no_socket(backend: str, base: Path, flags: Flags) -> None:
    """Of two ranks test_engine_restarts.py tells the same, with less to load."""
    server = Server(
        *flags,
        "--served-model-name",
        MODEL,
        "--distributed-executor-backend",
        backend,
        env={"VLLM_OBS_RUN_DIR": str(base)},
    )
    try:
        server.wait_ready()
        assert len(server.family) >= 1 + (backend == "mp")
        stream = server.stream("/v1/completions", LONG)
        next(stream)
        server.process.kill()
        assert server.leftovers(6) == []
        assert [path for path in base.rglob("*") if not (path.is_file() or path.is_dir())] == []
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert all("error" not in event for event in stream)
    finally:
        server.close()


@either_model
def test_killing_the_engine_ends_every_stream_with_its_cause_and_exits_70(flags: Flags) -> None:
    server = Server(*flags, "--served-model-name", MODEL, "--engine-restarts", "0")
    try:
        server.wait_ready()
        streams = [server.stream("/v1/completions", LONG) for _ in range(4)]
        for stream in streams:
            next(stream)
        server.child("EngineCore").kill()
        last = [list(stream)[-1] for stream in streams]
        assert [event["error"]["reason"] for event in last] == ["engine_dead"] * 4
        assert server.process.wait(9) == 70
        last_words = server.log.read_text().splitlines()[-1]
        assert last_words.startswith("vllm-obs: the engine died: EngineCore_DP0 was killed by SIGKILL"), last_words
        assert server.leftovers() == []
    finally:
        server.close()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["/no/such/model"], "/no/such/model"),
        (["--no-such-flag"], "no-such-flag"),
        (["--kv-cache-memory-bytes", "1000"], "--kv-cache-memory-bytes"),
        (["--max-model-len", "9000000"], "9000000"),
    ],
)
def test_a_start_that_cannot_work_ends_in_one_line_and_78(args: list[str], word: str, base: Path) -> None:
    """Of runs before it nothing is said: it has a folder of its own."""
    server = Server(*args, env={"VLLM_OBS_RUN_DIR": str(base)})
    try:
        assert server.process.wait(30) == 78
        text = server.log.read_text()
        assert word in text
        *before, last = text.splitlines()
        assert last.startswith("vllm-obs: ")
        assert all(" INFO " in line for line in before), text
    finally:
        server.close()
