"""An EngineCore over the fake executor, and what its clients saw of each sequence."""

from dataclasses import dataclass, field
from typing import Any

from ahead_executor import AheadExecutor
from fake_executor import FakeExecutor, make_request, tiny_config

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.messages import (
    AbortRequests,
    EngineCoreOutputs,
    FinishReason,
)
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.recorder import MemoryRecorder

PROMPT = list(range(100, 110))


@dataclass
class Seen:
    """What one client saw of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = -1
    stop_token_id: int = -1
    num_cached_tokens: int = 0
    error: tuple[str, str] | None = None


class Bench:
    """A core over the fake executor, a clock that counts, and what its clients saw."""

    def __init__(
        self, num_blocks: int = 32, config: VllmConfig | None = None, grammars: GrammarBook | None = None
    ) -> None:
        self.now = 0
        self.recorder = MemoryRecorder()
        config = config or tiny_config()
        make = AheadExecutor if config.scheduler.async_scheduling else FakeExecutor
        self.executor = make(num_blocks, config.cache.block_size)
        self.core = EngineCore(config, self.executor, self.recorder, self.tick, grammars)
        self.seen: dict[str, Seen] = {}
        self.messages: list[EngineCoreOutputs] = []

    def tick(self) -> int:
        self.now += 1
        return self.now

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> None:
        self.core.add_request(make_request(request_id, prompt, max_tokens, **fields))

    def abort(self, *request_ids: str, reason: int = FinishReason.ABORT, client_index: int = 0) -> None:
        self.core.abort_requests(AbortRequests(client_index, 0, list(request_ids), reason))

    def step(self) -> dict[int, EngineCoreOutputs]:
        outputs = self.core.step()
        for message in outputs.values():
            self.take(message)
        return outputs

    def take(self, message: EngineCoreOutputs) -> None:
        self.messages.append(message)
        begin = 0
        for row, request_id in enumerate(message.request_ids):
            seen = self.seen.setdefault(request_id, Seen())
            assert seen.finish_reason == -1, "nothing comes after an ending"
            end = begin + message.num_new_tokens[row]
            seen.token_ids += message.new_token_ids[begin:end]
            seen.finish_reason = message.finish_reasons[row]
            seen.stop_token_id = message.stop_token_ids[row]
            seen.num_cached_tokens = message.num_cached_tokens[row]
            begin = end
        assert begin == len(message.new_token_ids)
        for row, reason, text in message.errors:
            self.seen[message.request_ids[row]].error = (reason, text)

    def run(self, max_steps: int = 300) -> dict[str, Seen]:
        for _ in range(max_steps):
            if not self.core.has_work():
                self.check_idle()
                return self.seen
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def check_idle(self) -> None:
        pool = self.core.scheduler.kv_cache.pool
        assert self.core.scheduler.num_live == 0
        assert pool.num_active == 0
        assert self.executor.row_ids == set()
        self.core.scheduler.check()
