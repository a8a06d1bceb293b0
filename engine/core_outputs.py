"""Collects what the core has to tell its clients, and turns it into one message of columns for each client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vllm_obs.engine.messages import (
    Detours,
    EngineCoreOutputs,
    FinishReason,
    Float32Array,
    Logprobs,
    SchedulerStats,
)
from vllm_obs.engine.request import NO_TOKEN, NOT_ENDED, Request
from vllm_obs.engine.step_answer import StepUpdate


class OutputStamp(NamedTuple):
    """What all messages of one step share; the moments are monotonic ns."""

    engine_index: int
    generation: int
    step: int
    stats: SchedulerStats
    sampled_at: int
    sent_at: int


@dataclass
class _Columns:
    """One client's rows in the making, as `EngineCoreOutputs` describes them."""

    request_ids: list[str] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[int] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, Logprobs]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, Logprobs]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    timings: list[tuple[int, int, int]] = field(default_factory=list)
    detours: list[tuple[int, Detours]] = field(default_factory=list)
    pooled: list[tuple[int, Float32Array]] = field(default_factory=list)
    scheduled_ids: list[str] = field(default_factory=list)

    def add_rows(self, requests: Sequence[Request], num_new_tokens: int) -> None:
        """A row for each sequence, each with that many new tokens."""
        first_row = len(self.request_ids)
        self.request_ids += [request.request_id for request in requests]
        self.num_new_tokens += [num_new_tokens] * len(requests)
        self.finish_reasons += [request.finish_reason for request in requests]
        self.stop_token_ids += [request.stop_token_id for request in requests]
        self._add_rest(requests, first_row)

    def add_plain_rows(self, update: StepUpdate) -> None:
        """`add_rows` for sequences that all got one token and go on."""
        num_rows, first_row = len(update.requests), len(self.request_ids)
        self.request_ids += update.request_ids
        self.num_new_tokens += [1] * num_rows
        self.finish_reasons += [NOT_ENDED] * num_rows
        self.stop_token_ids += [NO_TOKEN] * num_rows
        self._add_rest(update.requests, first_row)

    def _add_rest(self, requests: Sequence[Request], first_row: int) -> None:
        self.num_cached_tokens += [request.num_cached_tokens for request in requests]
        for row, request in enumerate(requests, first_row):
            has_more = request.scheduled_at or request.untold_detours or request.prompt_logprobs
            if has_more or request.pooled is not None:
                self._add_more(row, request)

    def _add_more(self, row: int, request: Request) -> None:
        """What is to be told of a sequence beside its token."""
        if request.prompt_logprobs:
            self.prompt_logprobs.append((row, _take_prompt_logprobs(request)))
        if request.scheduled_at:
            self.timings.append((row, *_take_timing(request)))
        if request.untold_detours:
            self.detours.append((row, _take_detours(request)))
        if request.pooled is not None:
            self.pooled.append((row, request.pooled))

    def add_error(self, request_id: str, reason: str, message: str) -> None:
        """A row for something that never became a sequence."""
        self.errors.append((len(self.request_ids), reason, message))
        self.request_ids.append(request_id)
        self.num_new_tokens.append(0)
        self.finish_reasons.append(int(FinishReason.ERROR))
        self.stop_token_ids.append(NO_TOKEN)
        self.num_cached_tokens.append(0)

    def message(self, client_index: int, stamp: OutputStamp) -> EngineCoreOutputs:
        """The columns as a message; they must not grow afterwards."""
        return EngineCoreOutputs(
            client_index=client_index,
            engine_index=stamp.engine_index,
            generation=stamp.generation,
            step=stamp.step,
            request_ids=self.request_ids,
            num_new_tokens=self.num_new_tokens,
            new_token_ids=self.new_token_ids,
            finish_reasons=self.finish_reasons,
            stop_token_ids=self.stop_token_ids,
            num_cached_tokens=self.num_cached_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            errors=self.errors,
            timings=self.timings,
            detours=self.detours,
            utility=None,
            stats=stamp.stats,
            sampled_at=stamp.sampled_at,
            sent_at=stamp.sent_at,
            pooled=self.pooled,
            scheduled_ids=self.scheduled_ids,
        )


class OutputCollector:
    """Rows by client, from when they are known until the core hands them out."""

    def __init__(self) -> None:
        self._by_client: dict[int, _Columns] = {}

    def __bool__(self) -> bool:
        return bool(self._by_client)

    def add_tokens(self, update: StepUpdate, logprobs: Iterable[tuple[str, Logprobs]]) -> None:
        """A row for each sequence that got a token."""
        requests, token_ids = update.requests, update.token_ids
        clients = {request.client_index for request in requests}
        if len(clients) == 1 and update.is_plain:
            columns = self._columns(clients.pop())
            columns.add_plain_rows(update)
            columns.new_token_ids += token_ids
        elif len(clients) == 1:
            self._add_tokens_of(clients.pop(), requests, token_ids)
        else:
            for client_index in sorted(clients):
                rows = [row for row, request in enumerate(requests) if request.client_index == client_index]
                self._add_tokens_of(
                    client_index, [requests[row] for row in rows], [token_ids[row] for row in rows]
                )
        if logprobs:
            self._add_logprobs(requests, dict(logprobs))

    def _add_tokens_of(self, client_index: int, requests: list[Request], token_ids: list[int]) -> None:
        columns = self._columns(client_index)
        columns.add_rows(requests, 1)
        columns.new_token_ids += token_ids

    def _add_logprobs(self, requests: list[Request], logprobs: dict[str, Logprobs]) -> None:
        for client_index in {request.client_index for request in requests}:
            columns = self._columns(client_index)
            for row, request_id in enumerate(columns.request_ids):
                if columns.num_new_tokens[row] and request_id in logprobs:
                    columns.logprobs.append((row, logprobs[request_id]))

    def add_scheduled(self, request: Request) -> None:
        """Tell that a sequence was scheduled whose first token takes more steps."""
        self._columns(request.client_index).scheduled_ids.append(request.request_id)

    def add_ended(self, request: Request) -> None:
        """A row with the ending of a sequence that got no token with it."""
        columns = self._columns(request.client_index)
        if request.error is not None:
            columns.errors.append((len(columns.request_ids), *request.error))
        columns.add_rows([request], 0)

    def add_rejected(self, client_index: int, request_id: str, reason: str, message: str) -> None:
        """A row for a request that was not taken."""
        self._columns(client_index).add_error(request_id, reason, message)

    def take(self, stamp: OutputStamp) -> dict[int, EngineCoreOutputs]:
        """Everything collected, by client; the collector is empty afterwards."""
        by_client, self._by_client = self._by_client, {}
        return {client_index: columns.message(client_index, stamp) for client_index, columns in by_client.items()}

    def forget(self, client_index: int) -> None:
        """Drop what a client was to be told."""
        self._by_client.pop(client_index, None)

    def _columns(self, client_index: int) -> _Columns:
        columns = self._by_client.get(client_index)
        if columns is None:
            columns = self._by_client[client_index] = _Columns()
        return columns


def _take_timing(request: Request) -> tuple[int, int]:
    """When it was taken and first scheduled, which is told once."""
    scheduled_at, request.scheduled_at = request.scheduled_at, 0
    return request.taken_at, scheduled_at


def _take_detours(request: Request) -> Detours:
    """How long it was held up so far, which is told when it has changed."""
    detours, request.untold_detours = request.untold_detours, None
    return detours or Detours()


def _take_prompt_logprobs(request: Request) -> Logprobs:
    """All positions collected so far as one, and none left behind."""
    parts, request.prompt_logprobs = request.prompt_logprobs, []
    return Logprobs(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )
