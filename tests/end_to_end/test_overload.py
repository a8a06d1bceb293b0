"""Real processes under more than they can bear: the queue keeps its bound, and who is refused is told at once."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil
import pytest
from observed_server import ObservedServer, await_that, total
from serving import serving

NUM_RUNNING, NUM_WAITING = 4, 8
NUM_TOKENS = 20
REFUSAL_SECONDS = 3 * 0.05
NUM_PARTS = 5
"""Of the refusals, in order, of which the best part counts: whatever else runs on the machine is none of ours."""
RECOVERY_SECONDS = 3 * 5.0
NUM_TURNS = NUM_WAITING / NUM_RUNNING + 1
"""So many times what a full batch takes is needed by whoever is let in last: those before it, and itself."""
MAX_GROWTH_BYTES = 32 << 20
"""Over a minute; what a request holds is given back with it."""
FLAGS = (
    "--max-model-len", "2048", "--kv-cache-memory-bytes", str(1 << 26),
    "--max-num-seqs", str(NUM_RUNNING), "--max-num-queued-reqs", str(NUM_WAITING),
)  # fmt: skip
REJECTIONS = "vllm:admission_rejections_total"
BODY = {"prompt": "Hi", "max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    with serving(*FLAGS) as running, contextlib.closing(ObservedServer(running)) as observed:
        for word in (200, 300):
            use_cache(observed, word)
        yield observed


def use_cache(server: ObservedServer, word: int) -> None:
    """Use two thirds of the blocks: memory that is taken when they are first used is no growth under load."""
    prompt = {"prompt": [word] * 2000, "max_tokens": 1}
    assert asyncio.run(ask(server.port, prompt)).status == 200


class Answer(NamedTuple):
    """What one request got, and after how long."""

    status: int
    seconds: float
    headers: bytes
    body: bytes

    @property
    def retry_after_seconds(self) -> int:
        return int(self.headers.partition(b"retry-after: ")[2].split(b"\r\n")[0])

    @property
    def reason(self) -> str:
        return str(json.loads(self.body)["error"]["reason"])


async def ask(port: int, body: dict[str, Any], headers: str = "") -> Answer:
    """One request on a connection of its own."""
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun_at = time.monotonic()
    try:
        writer.write(f"{head}{headers}content-length: {len(content)}\r\n\r\n".encode() + content)
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        seconds = time.monotonic() - begun_at
        rest = await reader.read()
        if status == 200:
            seconds = time.monotonic() - begun_at
        found, _, reply = rest.partition(b"\r\n\r\n")
        return Answer(status, seconds, found.lower(), reply)
    finally:
        writer.close()


async def open_loop(port: int, rate: float, seconds: float) -> list[Answer]:
    """The answers to so many requests a second, sent whether earlier ones are answered or not."""
    tasks, begun_at = [], time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun_at + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(ask(port, BODY)))
    return list(await asyncio.gather(*tasks))


async def watched(server: ObservedServer, work: "asyncio.Task[list[Answer]]") -> list[float]:
    """How many waited at each look while that went on."""
    found = []
    while not work.done():
        samples = await asyncio.to_thread(server.samples)
        found.append(total(samples, "vllm:num_requests_waiting"))
        await asyncio.sleep(0.2)
    return found


def overload(server: ObservedServer, rate: float, seconds: float) -> tuple[list[Answer], list[float]]:
    async def both() -> tuple[list[Answer], list[float]]:
        load = asyncio.create_task(open_loop(server.port, rate, seconds))
        waiting = await watched(server, load)
        return await load, waiting

    return asyncio.run(both())


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def batch_seconds(server: ObservedServer) -> float:
    """How long as many requests take as may run at once; the longest of three times."""

    async def together() -> list[Answer]:
        return await asyncio.gather(*(ask(server.port, BODY) for _ in range(NUM_RUNNING)))

    batches = [asyncio.run(together()) for _ in range(3)]
    assert {answer.status for batch in batches for answer in batch} == {200}
    return max(answer.seconds for batch in batches for answer in batch)


def check_overload(server: ObservedServer, seconds: float) -> None:
    """Ten times what it can do."""
    processes = [psutil.Process(server.server.process.pid), server.server.child("EngineCore")]
    calm_seconds = batch_seconds(server)
    num_rejected = total(server.samples(), REJECTIONS, reason="max_num_queued_reqs")
    before_bytes = [process.memory_info().rss for process in processes]
    answers, waiting = overload(server, 10 * NUM_RUNNING / calm_seconds, seconds)
    after_bytes = [process.memory_info().rss for process in processes]
    grown_bytes = max(after - before for after, before in zip(after_bytes, before_bytes, strict=True))
    stopped_at = time.monotonic()
    assert asyncio.run(ask(server.port, BODY)).status == 200
    recovered_seconds = time.monotonic() - stopped_at
    refused = [answer for answer in answers if answer.status == 429]
    admitted = [answer for answer in answers if answer.status == 200]
    assert len(refused) + len(admitted) == len(answers)
    assert len(admitted) >= NUM_RUNNING + NUM_WAITING
    assert len(refused) > len(answers) / 2
    assert max(waiting) <= NUM_WAITING
    assert {answer.reason for answer in refused} == {"overloaded"}
    assert all(1 <= answer.retry_after_seconds <= 60 for answer in refused)
    refused_seconds = [answer.seconds for answer in refused]
    p50, p99 = (quantile(refused_seconds, share) for share in (0.5, 0.99))
    size = len(refused) // NUM_PARTS
    p90 = min(quantile(refused_seconds[part * size : (part + 1) * size], 0.9) for part in range(NUM_PARTS))
    slowest = max(answer.seconds for answer in admitted)
    print(
        f"{len(answers)} asked, {len(admitted)} admitted (slowest {slowest:.2f} s), {max(waiting):.0f} waiting, "
        f"refused in p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, p90 of a part {p90 * 1e3:.1f} ms, "
        f"RSS {grown_bytes / 2**20:+.1f} MiB, recovered in {recovered_seconds:.2f} s"
    )
    assert p90 <= REFUSAL_SECONDS
    assert slowest <= 3 * NUM_TURNS * max(calm_seconds, batch_seconds(server))
    assert grown_bytes < MAX_GROWTH_BYTES
    assert recovered_seconds < RECOVERY_SECONDS
    for answer in admitted:
        assert json.loads(answer.body)["usage"]["completion_tokens"] == NUM_TOKENS
    samples = await_that(lambda: is_idle(server.samples()))
    assert total(samples, REJECTIONS, reason="max_num_queued_reqs") == num_rejected + len(refused)
    assert server.broken_laws() == []


def is_idle(samples: Any) -> Any:
    """The samples, once nobody runs or waits."""
    levels = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return samples if sum(total(samples, name) for name in levels) == 0 else None


def test_ten_times_too_much_is_refused_in_time_and_the_rest_ends_well(server: ObservedServer) -> None:
    check_overload(server, 5.0)


@pytest.mark.long
def test_a_minute_of_ten_times_too_much_changes_nothing(server: ObservedServer) -> None:
    check_overload(server, 60.0)


def test_whoever_is_queued_longer_than_its_deadline_is_never_scheduled(server: ObservedServer) -> None:
    async def scenario() -> list[Answer]:
        running = [asyncio.create_task(ask(server.port, {**BODY, "max_tokens": 500})) for _ in range(NUM_RUNNING)]
        await asyncio.sleep(0.5)
        timeout = "x-request-timeout: 1\r\n"
        late = ask(server.port, BODY, f"{timeout}x-request-id: late\r\n")
        streamed = ask(server.port, {**BODY, "stream": True}, f"{timeout}x-request-id: late-stream\r\n")
        answers = await asyncio.gather(late, streamed)
        assert {answer.status for answer in await asyncio.gather(*running)} == {200}
        return answers

    answer, streamed = asyncio.run(scenario())
    assert (answer.status, answer.reason) == (504, "timeout")
    for one in (answer, streamed):
        assert 1.0 <= one.seconds <= 1.0 + 3 * 0.5
    events = streamed.body
    print(f"504 after {answer.seconds:.3f} s of a deadline of 1 s")
    assert b'"reason":"timeout"' in events
    assert b"[DONE]" not in events
    for name in ("late", "late-stream"):
        (sequence,) = await_that(lambda name=name: server.request(name)["sequences"])
        assert sequence["finish_reason"] == "error", sequence
        assert sequence["num_output_tokens"] == 0
        assert "prefill" not in json.dumps(sequence.get("stages", {}))
    await_that(lambda: is_idle(server.samples()))
    assert server.broken_laws() == []


def test_a_run_past_its_deadline_gives_its_blocks_back(server: ObservedServer) -> None:
    answer = asyncio.run(ask(server.port, {**BODY, "max_tokens": 2000}, "x-request-timeout: 0.5\r\n"))
    assert (answer.status, answer.reason) == (504, "timeout")
    assert 0.5 <= answer.seconds <= 0.5 + 3 * 0.5
    await_that(lambda: is_idle(server.samples()))
