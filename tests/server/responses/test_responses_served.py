"""/v1/responses of a real server, asked by the official client."""

import json
import time
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel
from responses_client import without_ids
from serving import MODEL, serving

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    "strict": True,
}


class Answer(BaseModel):
    """What is parsed."""

    verdict: Literal["yes", "no"]


def test_a_real_server_answers_the_official_client() -> None:
    with serving("--dtype", "float32", "--max-model-len", "512") as server:
        client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        with client:
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
