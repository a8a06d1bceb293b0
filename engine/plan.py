"""A step's plan (scheduler → executor → worker) and its answer (worker → scheduler), in columns."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.messages import Float32Array, Int32Array, Logprobs, SamplingSpec


class NewRow(NamedTuple):
    """A sequence the worker does not hold: admitted now, or scheduled again after preemption.

    `token_ids` (int32) is all that is known: the prompt's `num_prompt_tokens`, then tokens generated before
    a preemption. `block_ids` covers everything up to the end of this step.
    """

    request_id: str
    token_ids: Int32Array
    num_prompt_tokens: int
    sampling: SamplingSpec
    block_ids: list[int]
    num_computed_tokens: int


class StepPlan(NamedTuple):
    """What one step runs. Rows are `new_rows` first, then the `running_*` columns (parallel lists).

    `num_scheduled_tokens` is parallel to all rows, new first. `running_new_blocks[i]` are blocks appended to
    that row's table. `running_last_token_ids[i]` is the token sampled for that row in the step before, or
    -1 where the worker's own sampled token is to be taken (or no token was sampled: a prompt chunk).
    A row is sampled when this step computes its last known token. Rows in `released_ids` (finished, aborted
    or preempted) are dropped by the worker before anything else. A plan with no rows still releases.
    """

    step: int
    new_rows: list[NewRow]
    running_ids: list[str]
    running_new_blocks: list[list[int]]
    running_num_computed_tokens: list[int]
    running_last_token_ids: list[int]
    num_scheduled_tokens: list[int]
    released_ids: list[str]

    @property
    def num_rows(self) -> int:
        """How many sequences this step runs."""
        return len(self.new_rows) + len(self.running_ids)

    @property
    def num_tokens(self) -> int:
        """How many tokens this step computes."""
        return sum(self.num_scheduled_tokens)

    @property
    def row_ids(self) -> list[str]:
        """The request id of every row, in row order."""
        return [row.request_id for row in self.new_rows] + self.running_ids


class GrammarMasks(NamedTuple):
    """Which tokens the rows under a grammar may take.

    `bitmask` is int32, shape (len(request_ids), ceil(vocab / 32)), least significant bit first; 1 = allowed.
    """

    request_ids: list[str]
    bitmask: npt.NDArray[np.int32]


class WorkerMoments(NamedTuple):
    """When one rank did the parts of a step (monotonic ns)."""

    rank: int
    received_at: int
    prepared_at: int
    forwarded_at: int
    sample_begun_at: int
    sampled_at: int


class ModelRunnerOutput(NamedTuple):
    """The answer to one plan, for the rows that were sampled: `token_ids[i]` belongs to `request_ids[i]`.

    `logprobs` holds (request id, Logprobs with one position); `prompt_logprobs` the positions computed in this
    step for rows that asked, in prompt order (position p predicts token p + 1; the last prompt position is
    left out). `failed` holds (request id, reason, message) for rows that have no answer (NaN logits); it counts
    even where the row has a token. `pooled` holds (request id, float32 vector) for rows whose prompt became one in
    this step; they have a token too, which is nobody's.
    """

    step: int
    request_ids: list[str]
    token_ids: list[int]
    logprobs: list[tuple[str, Logprobs]]
    prompt_logprobs: list[tuple[str, Logprobs]]
    failed: list[tuple[str, str, str]]
    moments: list[WorkerMoments]
    pooled: list[tuple[str, Float32Array]] = []  # noqa: RUF012 - no message is changed once made
