"""Sends the requests: as fast as replies come (closed loop), or at their own moments (open loop)."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from vllm_obs.cli.bench.client import BenchClient, describe_failure
from vllm_obs.cli.bench.connection import Reply
from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.cli.bench.workload import Prompt, arrival_seconds, random_prompts

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Outcome:
    """One request's facts, in monotonic ns. Latencies count from `due_at`.

    In an open loop `due_at` is the moment the schedule gave, so that a stalled server is charged for the wait of
    requests that could not be sent; in a closed loop it is when the request was sent.
    """

    due_at: int
    sent_at: int
    ended_at: int
    token_moments: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    error: str = ""


class LoadGenerator:
    """Runs one measurement against a client."""

    def __init__(
        self, options: BenchOptions, client: BenchClient, model: str, on_done: Callable[[], object] = lambda: None
    ) -> None:
        self._options = options
        self._client = client
        self._model = model
        self._on_done = on_done
        self._outcomes: list[Outcome] = []
        self._slots = asyncio.Semaphore(options.max_concurrency or 1 << 30)

    async def warm_up(self) -> None:
        """Send the warm-up requests, at most `max_concurrency` at once, and forget them."""
        prompts = islice(random_prompts(self._options, seed=-1 - self._options.seed), self._options.num_warmups)
        async with asyncio.TaskGroup() as tasks:
            for prompt in prompts:
                tasks.create_task(self._send(prompt, None))
        self._outcomes.clear()

    async def run(self) -> list[Outcome]:
        """Send everything and wait for the last reply; outcomes are in the order they ended."""
        begun_at = time.monotonic_ns()
        prompts = random_prompts(self._options, self._options.seed)
        if self._options.duration is None:
            prompts = islice(prompts, self._options.num_prompts)
        async with asyncio.TaskGroup() as tasks:
            if self._options.is_open_loop:
                await self._open_loop(tasks, prompts, begun_at)
            else:
                self._closed_loop(tasks, prompts, begun_at)
        return self._outcomes

    def _closed_loop(self, tasks: asyncio.TaskGroup, prompts: Iterator[Prompt], begun_at: int) -> None:
        width = self._options.max_concurrency or self._options.num_prompts
        for _ in range(width):
            tasks.create_task(self._work(prompts, begun_at))

    async def _work(self, prompts: Iterator[Prompt], begun_at: int) -> None:
        while not self._is_over(time.monotonic_ns() - begun_at) and (prompt := next(prompts, None)):
            await self._send(prompt, None)

    async def _open_loop(self, tasks: asyncio.TaskGroup, prompts: Iterator[Prompt], begun_at: int) -> None:
        options = self._options
        for offset in arrival_seconds(options.request_rate, options.burstiness, options.seed):
            offset_ns = round(offset * _SECOND)
            if self._is_over(offset_ns) or (prompt := next(prompts, None)) is None:
                return
            due_at = begun_at + offset_ns
            await asyncio.sleep(max(0, due_at - time.monotonic_ns()) / _SECOND)
            tasks.create_task(self._send(prompt, due_at))

    def _is_over(self, elapsed_ns: int) -> bool:
        return self._options.duration is not None and elapsed_ns >= self._options.duration * _SECOND

    async def _send(self, prompt: Prompt, due_at: int | None) -> None:
        async with self._slots:
            sent_at = time.monotonic_ns()
            try:
                reply = await self._client.complete(self._body(prompt))
                error = describe_failure(reply)
            except (OSError, TimeoutError) as problem:
                reply = Reply()
                error = str(problem) or f"no whole reply within {self._options.request_timeout:g} seconds"
        self._outcomes.append(_outcome(sent_at if due_at is None else due_at, sent_at, reply, error))
        self._on_done()

    def _body(self, prompt: Prompt) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": prompt.token_ids,
            "max_tokens": prompt.max_tokens,
            "temperature": self._options.temperature,
            "ignore_eos": self._options.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _outcome(due_at: int, sent_at: int, reply: Reply, error: str) -> Outcome:
    if not error and (reply.num_prompt_tokens is None or reply.num_output_tokens is None):
        error = "the reply has no usage"
    return Outcome(
        due_at=due_at,
        sent_at=sent_at,
        ended_at=reply.ended_at or time.monotonic_ns(),
        token_moments=tuple(reply.token_moments),
        num_prompt_tokens=reply.num_prompt_tokens or 0,
        num_output_tokens=reply.num_output_tokens or 0,
        error=error,
    )
