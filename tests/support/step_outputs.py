"""One step's outputs written row by row."""

from dataclasses import dataclass, field

import numpy as np

from vllm_obs.engine.messages import Detours, EngineCoreOutputs, Logprobs


@dataclass
class Row:
    """One row of a step; the defaults are a sequence that goes on."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = -1
    stop_token_id: int = -1
    num_cached_tokens: int = 0
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    error: tuple[str, str] | None = None
    timing: tuple[int, int] | None = None
    detours: Detours | None = None


def step_outputs(*rows: Row, sampled_at: int = 5) -> EngineCoreOutputs:
    """The rows in columns."""
    return EngineCoreOutputs(
        client_index=0,
        engine_index=0,
        generation=0,
        step=0,
        request_ids=[row.request_id for row in rows],
        num_new_tokens=[len(row.token_ids) for row in rows],
        new_token_ids=[token for row in rows for token in row.token_ids],
        finish_reasons=[row.finish_reason for row in rows],
        stop_token_ids=[row.stop_token_id for row in rows],
        num_cached_tokens=[row.num_cached_tokens for row in rows],
        logprobs=[(i, row.logprobs) for i, row in enumerate(rows) if row.logprobs is not None],
        prompt_logprobs=[
            (i, row.prompt_logprobs) for i, row in enumerate(rows) if row.prompt_logprobs is not None
        ],
        errors=[(i, *row.error) for i, row in enumerate(rows) if row.error is not None],
        timings=[(i, *row.timing) for i, row in enumerate(rows) if row.timing is not None],
        detours=[(i, row.detours) for i, row in enumerate(rows) if row.detours is not None],
        utility=None,
        stats=None,
        sampled_at=sampled_at,
        sent_at=sampled_at,
    )


def logprobs(*positions: list[tuple[int, float]], rank: int = 1) -> Logprobs:
    """Columns from (token, log-probability) pairs: each position's own token first, then the best ones."""
    return Logprobs(
        np.array([[token for token, _ in position] for position in positions], np.int32),
        np.array([[value for _, value in position] for position in positions], np.float32),
        np.full(len(positions), rank, np.int32),
    )
