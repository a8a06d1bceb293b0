"""One engine over two hosts: the same tokens, both observed, and a host that is lost is named and replaced."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from mixed_requests import ANSWER_SECONDS, Judge, MixedRequest, mixed_requests
from process_watch import gone
from random_model import random_model
from serving import MODEL
from two_hosts import HostProcess, TwoHosts, two_hosts, why_not

from vllm_obs.engine.frontend.llm import LLM

pytestmark = pytest.mark.timeout(600)

SILENCE_SECONDS = 5.0
SYNTHETIC = [
    *("--load-format", "synthetic", "--distributed-executor-backend", "mp"),
    *("--model-loader-extra-config", json.dumps({"num_ranks": 2, "base_seconds": 0.02})),
]

Start = Callable[..., HostProcess]


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


@pytest.fixture
def start(hosts: TwoHosts) -> Iterator[Start]:
    """`start(host, *args)` starts vllm-obs there; all are ended, and have left no process."""
    started: list[HostProcess] = []

    def make(host: int, *args: str) -> HostProcess:
        started.append(HostProcess(hosts, host, *args))
        return started[-1]

    yield make
    for process in started:
        process.close()
    assert [each for process in started for each in process.leftovers()] == []


def completion(server: HostProcess, **fields: Any) -> list[int]:
    """The token ids of a short completion."""
    body = {"model": fields.pop("model", "synthetic"), "prompt": "Two hosts", "max_tokens": 8, "seed": 1}
    asked = {**body, "return_token_ids": True, **fields}
    status, reply = server.request("POST", "/v1/completions", asked, ANSWER_SECONDS)
    assert status == 200, reply
    tokens: list[int] = reply["choices"][0]["token_ids"]
    return tokens


def open_stream(pool: ThreadPoolExecutor, server: HostProcess) -> "Future[list[dict[str, Any]]]":
    """All events of a long stream, which is running when this returns."""
    first: Future[None] = Future()

    def read() -> list[dict[str, Any]]:
        events = []
        body = {"model": "synthetic", "prompt": "Two hosts", "max_tokens": 4000, "ignore_eos": True}
        for event in server.stream("/v1/completions", body):
            events.append(event)
            if not first.done():
                first.set_result(None)
        return events

    events = pool.submit(read)
    first.result(20.0)
    return events


def wait_ready_again(server: HostProcess, generation: int, seconds: float = 60.0) -> None:
    server.wait_said(f"(restart {generation})", seconds)
    server.wait_ready(seconds)


def test_a_killed_agent_is_named_and_another_takes_its_place(start: Start) -> None:
    agent, server = start(1, *SYNTHETIC), start(0, *SYNTHETIC)
    server.wait_ready()
    agent.note_family()
    tokens = completion(server)
    with ThreadPoolExecutor(1) as pool:
        stream = open_stream(pool, server)
        agent.kill()
        killed_at = time.monotonic()
        last = stream.result(20.0)[-1]
    assert time.monotonic() - killed_at < 6.0
    assert last["error"]["reason"] == "engine_dead"
    assert "Node_1 was lost" in last["error"]["message"]
    assert all(gone(process.pid, 2.0) for process in agent.family)
    another = start(1, *SYNTHETIC)
    wait_ready_again(server, generation=1)
    another.note_family()
    assert completion(server) == tokens
    wait_processes_of_both(server)
    wait_step_of_both(server)
    assert server.stop() == 0
    another.process.terminate()
    assert another.process.wait(10.0) == 0


def wait_processes_of_both(server: HostProcess, seconds: float = 10.0) -> None:
    """Return when the inspector has the processes of both hosts."""
    deadline, roles = time.monotonic() + seconds, set[str]()
    while not {"APIServer_0", "EngineCore_DP0", "Worker_TP0", "Worker_TP1", "Node_1"} <= roles:
        assert time.monotonic() < deadline, roles
        time.sleep(0.1)
        status, found = inspected(server, "/inspect/processes")
        roles = {process["role"] for process in found["processes"]} if status == 200 else set()


def wait_step_of_both(server: HostProcess, seconds: float = 10.0) -> None:
    """Return when the inspector has a step with what both hosts' ranks recorded of it."""
    deadline, ranks = time.monotonic() + seconds, []
    while not any({rank for rank, *_ in step} == {0, 1} for step in ranks):
        assert time.monotonic() < deadline, ranks
        time.sleep(0.1)
        ranks = inspected(server, "/inspect/steps")[1]["steps"]["ranks"]


def inspected(server: HostProcess, path: str) -> tuple[int, Any]:
    """What the inspector of host 0 answers, which comes up beside the server and may be a little later."""
    port, server.port = server.port, server.port + 1000
    deadline = time.monotonic() + 10.0
    try:
        while True:
            try:
                return server.request("GET", path)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        server.port = port


@pytest.mark.long
def test_hosts_that_cannot_hear_each_other_part_and_find_each_other_again(hosts: TwoHosts, start: Start) -> None:
    agent, server = start(1, *SYNTHETIC), start(0, *SYNTHETIC)
    server.wait_ready()
    agent.note_family()
    workers = [process.pid for process in (*agent.family, *server.family) if "Worker" in process.cmdline()[0]]
    assert len(workers) == 2
    with ThreadPoolExecutor(1) as pool:
        stream = open_stream(pool, server)
        hosts.unplug()
        begun_at = time.monotonic()
        last = stream.result(60.0)[-1]
    assert time.monotonic() - begun_at < 3 * SILENCE_SECONDS
    assert "Node_1 was lost" in last["error"]["message"]
    assert all(gone(pid, 3 * SILENCE_SECONDS) for pid in workers)
    hosts.plug()
    wait_ready_again(server, generation=1)
    assert len(completion(server)) == 8
    assert server.stop() == 0
    assert agent.process.wait(40.0) == 0


@pytest.fixture(scope="module")
def mix() -> list[MixedRequest]:
    return mixed_requests()


@pytest.fixture(scope="module")
def asked_random(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How a model of random weights is asked for, which two shards can divide."""
    return random_model(tmp_path_factory.mktemp("random-model"))


def alone(mix: list[MixedRequest], **engine_args: Any) -> list[list[int]]:
    """What one process says."""
    defaults = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 29, "max_num_seqs": 1}
    with LLM(**defaults, **engine_args, enable_prefix_caching=False) as llm:
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_shards", "num_stages"),
    [
        pytest.param(1, 2, id="a-stage-on-each-host"),
        pytest.param(2, 1, id="a-shard-on-each-host"),
        pytest.param(2, 2, id="two-shards-of-a-stage-on-each-host"),
    ],
)
def test_the_same_tokens_over_two_hosts(
    num_shards: int, num_stages: int, start: Start, mix: list[MixedRequest], asked_random: dict[str, Any]
) -> None:
    """Stages divide the default model, shards (which 9 query heads have none of) one of random weights."""
    asked = asked_random if num_shards > 1 else {}
    model = [asked["model"], "--load-format", "dummy", "--tokenizer", asked["tokenizer"]] if asked else []
    parallel = ["--tensor-parallel-size", str(num_shards), "--pipeline-parallel-size", str(num_stages)]
    limits = ["--dtype", "float32", "--max-model-len", "2048", "--kv-cache-memory-bytes", "512M"]
    args = [*model, "--served-model-name", MODEL, *limits, *parallel]
    expected = alone(mix, **asked)
    agent, server = start(1, *args), start(0, *args)
    server.wait_ready(120.0)
    agent.note_family()

    def ask(request: MixedRequest) -> list[int]:
        return completion(server, **request.body)

    with ThreadPoolExecutor(len(mix)) as pool:
        tokens = list(pool.map(ask, mix))
    Judge(mix, **asked).compare(f"{num_shards} shards, {num_stages} stages over two hosts", expected, tokens)
    assert server.stop() == 0
    assert agent.process.wait(40.0) == 0
