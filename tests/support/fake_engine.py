"""A fake engine at the client's port: it takes requests and gives back scripted tokens, one a step."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vllm_obs.engine.balancer import make_balancer
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishReason,
    Float32Array,
    Logprobs,
)

Script = Callable[[EngineCoreRequest], Sequence[int]]

FACTS = EngineFacts(
    engine_index=0,
    pid=1,
    model="fake",
    dtype="float32",
    device="cpu",
    max_model_len=2048,
    vocab_size=49152,
    num_gpu_blocks=1000,
    block_size=16,
    kv_cache_size_tokens=16000,
    kv_cache_max_concurrency=7.8,
    world_size=1,
    data_parallel_size=1,
    phases=[("load", 0.1)],
)

ERROR_TOKEN = -7
"""A scripted token that fails its sequence instead."""


class FakeEngine:
    """Speaks as AsyncMPClient. While `go` is clear no token is made, while `loaded` is clear it is not ready."""

    def __init__(self, script: Script, seconds_a_token: float = 0.0, engine_index: int = 0) -> None:
        self.engine_index = engine_index
        self.facts = FACTS._replace(engine_index=engine_index)
        self.dead_cause: str | None = None
        self.added: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.num_tokens_sent = 0
        self.utility_calls: list[tuple[str, tuple[Any, ...]]] = []
        self.utility_answers: dict[str, Any] = {}
        self.num_shutdowns = 0
        self.is_deaf = False
        self.was_asked_to_stop = threading.Event()
        self.start_error: Exception | None = None
        self.generation = 0
        self.successors: list[FakeEngine] = []
        """Those that take its place, in this order; when there are no more, one like this."""
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.go = asyncio.Event()
        self.go.set()
        self._script = script
        self._seconds_a_token = seconds_a_token
        self._outputs: asyncio.Queue[tuple[FakeEngine, EngineCoreOutputs | None]] = asyncio.Queue()
        self.num_taken = 0
        self._running: dict[str, asyncio.Task[None]] = {}

    async def call_utility(self, method: str, *args: Any) -> Any:
        self.utility_calls.append((method, args))
        return self.utility_answers.get(method)

    async def add_request(self, request: EngineCoreRequest) -> None:
        self.added.append(request)
        self._running[request.request_id] = asyncio.create_task(self._run(request))

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        for request_id in request_ids:
            if request_id in self._running:
                self._running.pop(request_id).cancel()
                self.aborted.append(request_id)

    def say_into(self, outputs: "asyncio.Queue[tuple[FakeEngine, EngineCoreOutputs | None]]") -> None:
        self._outputs = outputs

    def taken(self) -> None:
        self.num_taken += 1

    def die(self, cause: str = "killed") -> None:
        self.dead_cause = cause
        self._cancel_all()
        self._outputs.put_nowait((self, None))

    def successor(self) -> "FakeEngine":
        others = self.successors
        made = others.pop(0) if others else FakeEngine(self._script, self._seconds_a_token)
        made.engine_index, made.facts = self.engine_index, self.facts
        made.generation, made.successors = self.generation + 1, others
        made.say_into(self._outputs)
        return made

    async def ready(self, timeout_seconds: float) -> EngineFacts:
        await self.loaded.wait()
        if self.start_error is not None:
            raise self.start_error
        return self.facts

    def ask_to_stop(self) -> None:
        self.was_asked_to_stop.set()

    @property
    def has_stopped(self) -> bool:
        """A deaf one ends only when it is shut down."""
        return self.was_asked_to_stop.is_set() and not self.is_deaf

    @property
    def has_left_nothing(self) -> bool:
        return self.dead_cause is not None or self.has_stopped

    def shutdown(self, timeout_seconds: float = 5.0) -> None:
        self.num_shutdowns += 1
        self._cancel_all()

    def say(self, outputs: EngineCoreOutputs) -> None:
        self._outputs.put_nowait((self, outputs))

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _cancel_all(self) -> None:
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    async def _run(self, request: EngineCoreRequest) -> None:
        spec = request.sampling
        tokens = list(self._script(request))[: max(spec.max_tokens, 1)]
        for position, token in enumerate(tokens):
            await asyncio.sleep(self._seconds_a_token)
            await self.go.wait()
            is_last = position == len(tokens) - 1
            if token == ERROR_TOKEN:
                self._running.pop(request.request_id, None)
                self._send(request, [], FinishReason.ERROR, position)
                return
            is_stop = token in spec.eos_token_ids or token in spec.stop_token_ids
            finish = FinishReason.STOP if is_stop else FinishReason.LENGTH if is_last else None
            if finish is not None:
                self._running.pop(request.request_id, None)
            self._send(request, [token], finish, position)
            if finish is not None:
                return

    def _send(
        self, request: EngineCoreRequest, tokens: list[int], finish: FinishReason | None, position: int
    ) -> None:
        spec = request.sampling
        self.num_tokens_sent += len(tokens)
        stopped_by = tokens[0] if tokens and tokens[0] in spec.stop_token_ids else -1
        logprobs, prompt_logprobs = [], []
        pooled = [(0, fake_vector(request.prompt_token_ids.tolist()))] if spec.pooling and tokens else []
        if spec.logprobs is not None and tokens:
            logprobs.append((0, fake_logprobs(tokens, spec.logprobs)))
        if spec.prompt_logprobs is not None and position == 0 and len(request.prompt_token_ids) > 1:
            prompt = [int(token) for token in request.prompt_token_ids[1:]]
            prompt_logprobs.append((0, fake_logprobs(prompt, spec.prompt_logprobs)))
        self.say(
            EngineCoreOutputs(
                client_index=0,
                engine_index=self.engine_index,
                generation=0,
                step=position,
                request_ids=[request.request_id],
                num_new_tokens=[len(tokens)],
                new_token_ids=tokens,
                finish_reasons=[-1 if finish is None else int(finish)],
                stop_token_ids=[stopped_by],
                num_cached_tokens=[0],
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                errors=[(0, "internal_error", "planted /secret/path")] if finish is FinishReason.ERROR else [],
                timings=[(0, request.submitted_at, request.submitted_at + 1000)] if position == 0 else [],
                detours=[],
                utility=None,
                stats=None,
                sampled_at=time.monotonic_ns(),
                sent_at=time.monotonic_ns(),
                pooled=pooled,
            )
        )


def balanced(*engines: FakeEngine) -> DPLBAsyncMPClient:
    """The client of these, each request to the least loaded."""
    return DPLBAsyncMPClient(engines, make_balancer("least_loaded", 0))  # type: ignore[arg-type]


def fake_logprobs(tokens: list[int], num_top: int) -> Logprobs:
    """Each token the best of its position with -0.5; the next best are the ids after it."""
    columns = [[token, *(token + index for index in range(num_top))] for token in tokens]
    values = [[-0.5, *(-0.5 - index for index in range(num_top))] for _ in tokens]
    shape = (len(tokens), num_top + 1)
    return Logprobs(
        np.array(columns, np.int32).reshape(shape),
        np.array(values, np.float32).reshape(shape),
        np.ones(len(tokens), np.int32),
    )


def fake_vector(token_ids: list[int]) -> Float32Array:
    """A vector of the default model's width that is another one for other tokens."""
    return np.random.default_rng(token_ids).standard_normal(576, np.float32)
