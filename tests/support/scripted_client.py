"""Clients whose engine says exactly what a test puts in."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from step_outputs import Row, step_outputs

from vllm_obs.engine.errors import EngineDeadError, EngineLostError, RequestFailedError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishReason

FACTS = EngineFacts(0, 1, "m", "float32", "cpu", 2048, 49152, 100, 16, 1600, 1.0, 1, 1, [])


class ScriptedAsyncClient:
    """A DPLBAsyncMPClient whose engine is `say`. `refuse_after` requests, add_request fails as overloaded."""

    def __init__(self, refuse_after: int | None = None) -> None:
        self.engines = [FACTS]
        self.dead_cause: str | None = None
        self.added: list[EngineCoreRequest] = []
        self.aborts: list[tuple[list[str], FinishReason]] = []
        self.was_shut_down = False
        self._refuse_after = refuse_after
        self._outputs: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()

    def say(self, *rows: Row) -> None:
        self._outputs.put_nowait(step_outputs(*rows))

    def fail(self, error: Exception) -> None:
        self._outputs.put_nowait(error)

    async def add_request(self, request: EngineCoreRequest) -> None:
        if self._refuse_after is not None and len(self.added) >= self._refuse_after:
            raise RequestFailedError("the engine's queue is full", "under_pressure")
        self.added.append(request)

    async def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        if self.dead_cause is not None:
            raise EngineDeadError(self.dead_cause)
        self.aborts.append((list(request_ids), reason))

    async def get_output(self) -> EngineCoreOutputs:
        said = await self._outputs.get()
        if isinstance(said, Exception):
            raise said
        return said

    def give_up(self, cause: str) -> None:
        self.dead_cause = cause
        self.fail(EngineLostError(cause, 0, [request.request_id for request in self.added]))

    def let_in(self, client: Any) -> None:
        self.dead_cause = None

    async def call_utility(self, method: str, *args: Any) -> Any:
        raise AssertionError(f"nobody calls {method}")

    def shutdown(self) -> None:
        self.was_shut_down = True


class EchoClient:
    """An InprocClient whose engine repeats each prompt's tokens, one a step, up to max_tokens."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.added: list[EngineCoreRequest] = []
        self.aborts: list[tuple[list[str], FinishReason]] = []
        self.failing: set[int] = set()
        self.was_shut_down = False
        self._left: dict[str, deque[int]] = {}

    def add_request(self, request: EngineCoreRequest) -> None:
        tokens = (request.prompt_token_ids.tolist() * request.sampling.max_tokens)[: request.sampling.max_tokens]
        self.added.append(request)
        self._left[request.request_id] = deque(tokens)

    def abort_requests(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        self.aborts.append((list(request_ids), reason))
        for request_id in request_ids:
            self._left.pop(request_id, None)

    def get_output(self) -> EngineCoreOutputs | None:
        rows = []
        for request_id, tokens in list(self._left.items()):
            token = tokens.popleft()
            if token in self.failing:
                error = ("invalid_logits", "a row was not finite")
                rows.append(Row(request_id, [], FinishReason.ERROR, error=error))
                del self._left[request_id]
                continue
            rows.append(Row(request_id, [token], -1 if tokens else FinishReason.LENGTH))
            if not tokens:
                del self._left[request_id]
        return step_outputs(*rows) if rows else None

    def shutdown(self) -> None:
        self.was_shut_down = True
