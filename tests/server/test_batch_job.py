"""A batch over the real application: every line gets its answer, and no more are held than run at once."""

import asyncio
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import Served, served

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.server.batch_files import BatchFileError, BatchFiles, Line, LineReader
from vllm_obs.server.batch_job import BatchJob

HELLO = {"prompt": "Hello", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def line(custom_id: Any = "a", url: str = "/v1/completions", body: Any = None, **changed: Any) -> bytes:
    """A line of a batch; a field that is None is left out."""
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": HELLO if body is None else body}
    return json.dumps({k: v for k, v in (fields | changed).items() if v is not None}).encode() + b"\n"


class Output(io.BytesIO):
    """Keeps what was written; from `fails_at` lines on there is no room."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.num_lines = 0
        self._fails_at = fails_at

    def write(self, content: Any) -> int:
        if self.num_lines == self._fails_at:
            raise OSError(28, "No space left on device")
        self.num_lines += 1
        return super().write(content)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(written) for written in self.getvalue().splitlines()]


class CountedInput(io.BytesIO):
    """Makes lines when they are read, and counts them."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self.num_read = 0
        self._lines = lines

    def readline(self, size: int | None = -1, /) -> bytes:
        self.num_read += 1
        return next(self._lines, b"")


def dots(request: EngineCoreRequest) -> list[int]:
    return [30] * 100


def files_of(lines: Iterable[bytes], output: Output | None = None) -> BatchFiles:
    return BatchFiles(io.BytesIO(b"".join(lines)), output or Output())


async def answered(app: Served, *lines: bytes) -> list[dict[str, Any]]:
    """The lines of the output of a batch."""
    output = Output()
    await BatchJob(files_of(lines, output), num_at_once=8).run(app.app)
    return output.lines


def test_each_line_is_answered_as_the_server_answers() -> None:
    async def check() -> None:
        async with served(FakeEngine(dots)) as app:
            lines = [line("a", "/v1/chat/completions", CHAT), line("b"), b"\n", line("b")]
            answers = {entry["custom_id"]: entry for entry in await answered(app, *lines, line("c", body={}))}
            assert sorted(answers) == ["a", "b", "c"]
            for name, url, body in (
                ("a", "/v1/chat/completions", CHAT),
                ("b", "/v1/completions", HELLO),
                ("c", "/v1/completions", {}),
            ):
                reply = await app.post(url, body)
                told = answers[name]["response"]
                assert told["status_code"] == reply.status_code
                assert without_ids(told["body"]) == without_ids(reply.json())
                assert told["body"].get("id", "").endswith(told["request_id"] if reply.is_success else "")
                assert answers[name]["error"] == reply.json().get("error")

    asyncio.run(check())


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def test_an_id_may_come_twice_and_entries_have_their_own() -> None:
    async def check() -> None:
        async with served(FakeEngine(dots)) as app:
            entries = await answered(app, *[line("same")] * 20)
            assert {entry["custom_id"] for entry in entries} == {"same"}
            assert len({entry["id"] for entry in entries}) == 20
            assert len({entry["response"]["request_id"] for entry in entries}) == 20

    asyncio.run(check())


@pytest.mark.parametrize(
    ("bad", "custom_id", "reason", "words"),
    [
        (b"{not json\n", None, "invalid_json", "line 2 is not JSON"),
        (b'{"custom_id": "\xff"}\n', None, "invalid_json", "line 2 is not JSON"),
        (b"[" * 100_000 + b"\n", None, "invalid_body", "line 2: Expected `object`"),
        (line(body={"prompt": 7}).replace(b"7", b"[" * 900 + b"]" * 900), "a", "too_deep", "64"),
        (line(body={"prompt": 7}).replace(b"7", b"[" * 9000 + b"]" * 9000), None, "invalid_json", "line 2"),
        (b"[1]\n", None, "invalid_body", "line 2: Expected `object`"),
        (line(url=None), "a", "invalid_body", "missing required field `url`"),  # type: ignore[arg-type]
        (line(5), None, "invalid_body", "Expected `str`, got `int`"),
        (line(method="GET"), "a", "invalid_value", "'GET' is not POST"),
        (line(url="/metrics"), "a", "invalid_value", "'/metrics' is not one of"),
        (line(body=HELLO | {"stream": True}), "a", "unsupported", "stream is not for batches"),
        (line(body=[1]), "a", "invalid_body", ""),
        (line(body={"prompt": "Hello", "n": -1}), "a", "invalid_value", "n"),
        (line(body=HELLO | {"model": "other"}), "a", "model_not_found", "other"),
    ],
)
def test_a_bad_line_gets_an_error_and_ends_nothing(
    bad: bytes, custom_id: str | None, reason: str, words: str
) -> None:
    async def check() -> None:
        async with served(FakeEngine(dots)) as app:
            entries = await answered(app, line("before"), bad, line("after"))
            (entry,) = [entry for entry in entries if entry["custom_id"] not in ("before", "after")]
            assert entry["custom_id"] == custom_id
            assert entry["error"] == entry["response"]["body"]["error"]
            assert entry["error"]["reason"] == reason
            assert entry["error"]["code"] == entry["response"]["status_code"]
            assert words in entry["error"]["message"]
            assert len(entries) == 3

    asyncio.run(check())


def test_a_request_that_the_engine_fails_is_told_of() -> None:
    async def check() -> None:
        engine = FakeEngine(lambda request: [ERROR_TOKEN])
        async with served(engine) as app:
            output = Output()
            job = BatchJob(files_of([line()], output), 2)
            await job.run(app.app)
            assert (job.num_answered, job.num_failed) == (1, 1)
            assert output.lines[0]["error"]["reason"] == "internal_error"

    asyncio.run(check())


def test_no_more_lines_are_read_than_run_at_once() -> None:
    num_lines, num_at_once = 1500, 24

    async def check() -> None:
        async with served(FakeEngine(lambda request: [30])) as app:
            output, most = Output(), 0

            def lines() -> Iterator[bytes]:
                nonlocal most
                for number in range(num_lines):
                    most = max(most, source.num_read - output.num_lines)
                    yield line(str(number), body={"prompt": "x" * 1000, "max_tokens": 1})

            source = CountedInput(lines())
            job = BatchJob(BatchFiles(source, output), num_at_once)
            await job.run(app.app)
            assert most == num_at_once
            assert (job.num_answered, job.num_failed, job.num_under_way) == (num_lines, 0, 0)
            assert {entry["custom_id"] for entry in output.lines} == {str(n) for n in range(num_lines)}

    asyncio.run(check())


def test_after_a_stop_what_is_under_way_goes_on_and_nothing_else_begins() -> None:
    async def check() -> None:
        engine = FakeEngine(dots)
        engine.go.clear()
        async with served(engine) as app:
            output = Output()
            job = BatchJob(files_of([line(str(n)) for n in range(50)], output), 4)
            running = asyncio.create_task(job.run(app.app))
            await until(lambda: len(engine.added) == 4)
            job.stop()
            engine.go.set()
            await asyncio.wait_for(running, 10)
            assert sorted(entry["custom_id"] for entry in output.lines) == ["0", "1", "2", "3"]

    asyncio.run(check())


def test_cutting_off_aborts_what_is_under_way_and_writes_nothing_of_it() -> None:
    async def check() -> None:
        engine = FakeEngine(dots)
        engine.go.clear()
        async with served(engine) as app:
            output = Output()
            running = asyncio.create_task(BatchJob(files_of([line()] * 50, output), 4).run(app.app))
            await until(lambda: len(engine.added) == 4)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await until(lambda: len(engine.aborted) == 4)
            assert (output.lines, engine.num_running, app.api.num_open) == ([], 0, 0)

    asyncio.run(check())


def test_lines_wait_while_nothing_may_be_sent() -> None:
    async def check() -> None:
        engine, may_send = FakeEngine(dots), False
        async with served(engine) as app:
            job = BatchJob(files_of([line()] * 9), 4, lambda: may_send)
            running = asyncio.create_task(job.run(app.app))
            await until(lambda: job.num_under_way == 4)
            await asyncio.sleep(0.05)
            assert engine.added == []
            may_send = True
            await asyncio.wait_for(running, 10)
            assert job.num_answered == 9

    asyncio.run(check())


async def until(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


def test_a_full_disk_ends_the_batch_with_its_cause() -> None:
    async def check() -> None:
        engine = FakeEngine(dots)
        async with served(engine) as app:
            job = BatchJob(files_of([line()] * 50, Output(fails_at=5)), 4)
            with pytest.raises(BatchFileError, match="output cannot be written: No space left"):
                await asyncio.wait_for(job.run(app.app), 10)
            assert job.num_answered == 5
            assert app.api.num_open == 0

    asyncio.run(check())


def test_a_line_that_is_too_long_is_cut_and_the_next_one_read() -> None:
    reader = LineReader(io.BytesIO(b"short\n" + b"x" * 35 + b"\nlast"), max_line_bytes=10)
    assert [reader.next() for _ in range(5)] == [
        Line(1, b"short\n", True),
        Line(2, b"x" * 11, False),
        Line(3, b"last", True),
        None,
        None,
    ]
    assert reader.num_bytes_read == 46
