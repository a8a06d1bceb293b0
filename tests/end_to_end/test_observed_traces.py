"""A live server's spans reach a real receiver; from a request's span its stages and its steps can be reached."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from load_client import CHAT, Asked, LoadClient
from observed_server import ObservedServer, synthetic, total
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from otlp_receiver import OtlpReceiver, Received, grpc_receiver, http_receiver

SERVER = Span.SpanKind.SPAN_KIND_SERVER
ERROR = Status.STATUS_CODE_ERROR
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = {"prompt": [5] * 20, "max_tokens": 1500, "ignore_eos": True, "stream": True}
CHAT_STAGES = ["receive", "render", "tokenize", "submit", "queue", "prefill", "decode", "return", "detokenize"]
STEPPED_CLOCK = """
import time
true_time, true_time_ns, monotonic = time.time, time.time_ns, time.monotonic
def jump():
    return 3600 * (int(monotonic() / 0.3) % 3 - 1)
time.time = lambda: true_time() + jump()
time.time_ns = lambda: true_time_ns() + jump() * 10**9
"""
"""A wall clock that is set back and forth by an hour, three times a second, in every process."""


def servers(receiver: OtlpReceiver) -> list[Received]:
    return [received for received in receiver.spans() if received.span.kind == SERVER]


def below(receiver: OtlpReceiver, parent: Received) -> list[Received]:
    spans = [received for received in receiver.spans() if received.parent_id == parent.span_id]
    return sorted(spans, key=lambda received: received.span.start_time_unix_nano)


def links(received: Received) -> set[int]:
    return {int.from_bytes(link.span_id, "big") for link in received.span.links}


@pytest.mark.parametrize(
    ("receiving", "protocol"), [(grpc_receiver, "grpc"), (http_receiver, "http/protobuf")], ids=["grpc", "http"]
)
def test_from_a_chats_span_every_stage_and_step_can_be_reached(
    receiving: Callable[[], AbstractContextManager[OtlpReceiver]], protocol: str
) -> None:
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol}
    with receiving() as receiver:
        url = receiver.url if protocol == "grpc" else f"{receiver.url}/v1/traces"
        with synthetic("--otlp-traces-endpoint", url, env=env) as server:
            body = {"messages": QUESTION, "max_tokens": 6, "ignore_eos": True}
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            (seen,) = LoadClient(server.port, 1).run([Asked("traced", body, CHAT, headers=headers)])
            assert seen.status == 200
            steps = server.request("traced")["sequences"][0]["steps"]["step"]
            # Steps go out when they are known to be over, which an idle engine tells when it stops.
        (span,) = servers(receiver)
        assert (f"{span.trace_id:032x}", f"{span.parent_id:016x}") == (TRACE, PARENT)
        stages = below(receiver, span)
        assert [stage.span.name for stage in stages] == [*CHAT_STAGES, "deliver"]
        assert {stage.trace_id for stage in stages} == {span.trace_id}
        assert stages[0].span.start_time_unix_nano == span.span.start_time_unix_nano
        assert stages[-1].span.end_time_unix_nano == span.span.end_time_unix_nano
        reached = [each for each in receiver.spans() if each.span_id in set().union(*map(links, stages))]
        assert sorted(each.attributes["vllm_obs.step"] for each in reached) == steps
        assert {each.span.name for each in reached} == {"engine.step"}
        own = {stage.span_id for stage in stages}
        assert all(links(step) & own for step in reached)
        parts = {part.span.name for step in reached for part in below(receiver, step)}
        assert parts == {"schedule", "execute_model", "update"}


@pytest.fixture
def traced() -> Iterator[tuple[ObservedServer, OtlpReceiver]]:
    flags = ("--disable-log-stats", "--otlp-traces-endpoint")
    with grpc_receiver() as receiver, synthetic(*flags, receiver.url) as server:
        yield server, receiver


def test_five_that_left_after_a_token_are_five_spans_also_without_statistics(
    traced: tuple[ObservedServer, OtlpReceiver],
) -> None:
    server, receiver = traced
    seen = LoadClient(server.port, 5).run(Asked(f"left-{n}", LONG, leave_events=1) for n in range(5))
    assert [one.has_left for one in seen] == [True] * 5
    receiver.await_that(lambda got: len(servers(got)) >= 5)
    spans = servers(receiver)
    assert sorted(span.attributes["vllm_obs.request.label"] for span in spans) == [f"left-{n}" for n in range(5)]
    assert [(span.span.status.code, span.attributes["error.type"]) for span in spans] == [(ERROR, "abort")] * 5
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in spans] == [["abort"]] * 5
    for span in spans:
        told = server.request(span.attributes["vllm_obs.request.label"])["sequences"][0]
        assert span.attributes["gen_ai.usage.output_tokens"] == told["num_output_tokens"] >= 1
        assert below(receiver, span)[-1].span.name == "deliver"
    samples = server.samples()
    assert [name for name in samples if name.startswith("vllm:")] == []
    assert total(samples, "http_requests_total", handler="/v1/completions", status="4xx") == 5


def test_a_wall_clock_that_jumps_makes_no_time_negative(tmp_path: Path) -> None:
    patched = tmp_path / "patched"
    patched.mkdir()
    (patched / "sitecustomize.py").write_text(STEPPED_CLOCK)
    path = os.pathsep.join(filter(None, [str(patched), os.environ.get("PYTHONPATH")]))
    with (
        grpc_receiver() as receiver,
        synthetic("--otlp-traces-endpoint", receiver.url, env={"PYTHONPATH": path}) as server,
    ):
        body = {"prompt": [5] * 20, "max_tokens": 100, "ignore_eos": True}
        seen = LoadClient(server.port, 4).run(Asked(f"stepped-{n}", body) for n in range(40))
        assert {one.status for one in seen} == {200}
        receiver.await_that(lambda got: len(servers(got)) == 40)
        requests = [server.request(one.asked.label)["sequences"][0] for one in seen]
        assert server.broken_laws() == []
        samples = server.samples()
    assert min(length for request in requests for length in request["stage_ns"].values()) >= 0
    negative = [
        value for name, found in samples.items() if name.endswith("_sum") for _, value in found if value < 0
    ]
    assert negative == []
    assert_nested(receiver, servers(receiver))


def assert_nested(receiver: OtlpReceiver, spans: list[Received]) -> None:
    """No span ends before it begins, and each stage lies in its request."""
    assert all(one.span.start_time_unix_nano <= one.span.end_time_unix_nano for one in receiver.spans())
    for span in spans:
        stages = below(receiver, span)
        lengths = [stage.span.end_time_unix_nano - stage.span.start_time_unix_nano for stage in stages]
        assert sum(lengths) == span.span.end_time_unix_nano - span.span.start_time_unix_nano
        assert stages[0].span.start_time_unix_nano == span.span.start_time_unix_nano
