"""A real OTLP backend stores a live server's traces, and gives a chat's stages and steps back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load_client import CHAT, Asked, LoadClient
from observed_server import await_that, observed
from phoenix_backend import PYTHON, VARIABLE, Phoenix, phoenix

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = [
    "receive",
    "render",
    "tokenize",
    "submit",
    "queue",
    "prefill",
    "decode",
    "return",
    "detokenize",
    "deliver",
]
FIRST, LAST = "vllm_obs.first_step", "vllm_obs.last_step"
BODY = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 6, "ignore_eos": True}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{VARIABLE} names no environment with arize-phoenix"),
]


@pytest.fixture
def backend() -> Iterator[Phoenix]:
    with phoenix() as running:
        yield running


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_phoenix_gives_a_chats_stages_and_steps_back(backend: Phoenix, protocol: str, tmp_path: Path) -> None:
    port, path = (backend.grpc_port, "") if protocol == "grpc" else (backend.http_port, "/v1/traces")
    flags = ("--otlp-traces-endpoint", f"http://127.0.0.1:{port}{path}")
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol, "OTEL_METRICS_EXPORTER": "none"}
    with observed(tmp_path / "model", *flags, env=env) as server:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        (seen,) = LoadClient(server.port, 1).run([Asked("traced", BODY, CHAT, headers=headers)])
        assert seen.status == 200
        steps = server.request("traced")["sequences"][0]["steps"]["step"]
    # What an idle engine still held goes out as the server ends.
    stored = await_that(lambda: whole(backend.spans(), len(steps)), seconds=60)
    (root,) = (span for span in stored if span["parent_id"] == PARENT)
    stages = [span for span in stored if span["parent_id"] == root["context"]["span_id"]]
    assert {span["context"]["trace_id"] for span in (root, *stages)} == {TRACE}
    assert sorted(span["name"] for span in stages) == sorted(STAGES)
    # It shows no links between traces; the stages tell the numbers of their steps as well.
    ranges = [span["attributes"] for span in stages if FIRST in span["attributes"]]
    reached = {step for each in ranges for step in range(each[FIRST], each[LAST] + 1)}
    assert sorted(reached) == steps
    assert sorted(span["attributes"]["vllm_obs.step"] for span in steps_of(stored)) == steps


def steps_of(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == "engine.step"]


def whole(spans: list[dict[str, Any]], num_steps: int) -> list[dict[str, Any]]:
    """The spans once the request and all of its steps are there."""
    has_request = any(span["parent_id"] == PARENT for span in spans)
    return spans if has_request and len(steps_of(spans)) >= num_steps else []
