"""The rows a worker holds between steps, in columns, changed only by what each plan says is different."""

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.messages import Int32Array
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.pooling.kinds import POOLING_KINDS
from vllm_obs.engine.sampling.columns import SamplingBatch, SamplingColumns

Int64Array = npt.NDArray[np.int64]

NO_TOKEN = -1
UNREAD = -2
"""In the place of a token that was sampled, and that the host has not read yet."""
NOT_POOLED = -1
MAX_UNREAD = 2
"""Steps whose tokens the host does not know."""


class InputBatch:
    """Token ids, block tables and counts of up to `max_num_rows` sequences; rows 0 … num_rows - 1 are in use.

    token_ids: int32 (rows, max_num_tokens), 0 beyond `num_tokens`, the number of a row's known tokens.
    block_tables: int64 (rows, max blocks), 0 beyond `num_blocks`. pending: the token sampled for a row but not
    appended yet, or NO_TOKEN. pooling: the place in POOLING_KINDS of how a row is pooled, or NOT_POOLED. A pending
    token and the last one of a row may be UNREAD; sampled_places: where it is then among those sampled last. The
    operating system commits the wide columns as rows grow. `epoch` counts the plans, `added_epochs` has each row's
    first; there may be an UNREAD token where `has_unread`.
    """

    def __init__(self, max_num_rows: int, max_num_tokens: int, block_size: int, vocab_size: int) -> None:
        max_num_blocks = -(-max_num_tokens // block_size)
        self.block_size = block_size
        self.num_rows = 0
        self.request_ids: list[str] = []
        self.token_ids: Int32Array = np.zeros((max_num_rows, max_num_tokens), np.int32)
        self.block_tables: Int64Array = np.zeros((max_num_rows, max_num_blocks), np.int64)
        self.num_blocks: Int64Array = np.zeros(max_num_rows, np.int64)
        self.num_tokens: Int64Array = np.zeros(max_num_rows, np.int64)
        self.num_prompt_tokens: Int64Array = np.zeros(max_num_rows, np.int64)
        self.num_computed_tokens: Int64Array = np.zeros(max_num_rows, np.int64)
        self.num_prompt_logprobs: Int64Array = np.full(max_num_rows, -1, np.int64)
        self.pooling: Int64Array = np.full(max_num_rows, NOT_POOLED, np.int64)
        self.pending: Int64Array = np.full(max_num_rows, NO_TOKEN, np.int64)
        self.sampled_places: Int64Array = np.zeros(max_num_rows, np.int64)
        self.added_epochs: Int64Array = np.zeros(max_num_rows, np.int64)
        self.has_unread = False
        self.epoch = 0
        self.sampling = SamplingColumns(max_num_rows, vocab_size)
        self._row_of: dict[str, int] = {}

    def update(self, plan: StepPlan) -> Int64Array:
        """Apply a plan and return its rows, int64 (plan.num_rows,), in plan order."""
        self.epoch += 1
        for request_id in plan.released_ids:
            self._release(request_id)
        for new in plan.new_rows:
            self._add(new)
        rows = np.array([self._row_of[request_id] for request_id in plan.row_ids], np.int64)
        self._advance(rows[len(plan.new_rows) :], plan)
        return rows

    def note_sampled(self, rows: Int64Array, token_ids: list[int]) -> None:
        """Keep what was just sampled for `rows`, to append when a plan leaves the token to the worker.

        A plan made before it was known that a row failed (-1) goes on with 0; what comes of it is nobody's.
        """
        self.pending[rows] = np.maximum(token_ids, 0)
        self.has_unread = False

    def note_unread(self, rows: Int64Array) -> None:
        """Something was sampled for `rows`, int64 (R,), that the host does not know yet."""
        self.pending[rows] = UNREAD
        self.sampled_places[rows] = np.arange(len(rows))
        self.has_unread = True

    def note_read(self, epoch: int, request_ids: list[str], token_ids: list[int]) -> None:
        """What was sampled for these at an epoch is known now. Some may be held no more, or have had it appended
        already; another sequence may have the id of one by now.
        """
        for request_id, token in zip(request_ids, token_ids, strict=True):
            row = self._row_of.get(request_id)
            if row is None or self.added_epochs[row] > epoch:
                continue
            end = int(self.num_tokens[row])
            for place in range(max(0, end - MAX_UNREAD), end):
                if self.token_ids[row, place] == UNREAD:
                    self.token_ids[row, place] = max(token, 0)
                    break
            else:
                if self.pending[row] == UNREAD:
                    self.pending[row] = max(token, 0)

    def sampling_batch(self, rows: Int64Array) -> SamplingBatch:
        """The sampler's view of some rows."""
        return SamplingBatch(
            columns=self.sampling,
            rows=rows,
            request_ids=[self.request_ids[row] for row in rows.tolist()],
            num_tokens=self.num_tokens[rows],
            num_prompt_tokens=self.num_prompt_tokens[rows],
            token_ids=self.token_ids,
        )

    def _add(self, new: NewRow) -> None:
        self._release(new.request_id)
        row = self.num_rows
        assert row < len(self.num_tokens), "a plan holds at most max_num_seqs sequences"
        self.num_rows += 1
        self.request_ids.append(new.request_id)
        self._row_of[new.request_id] = row
        num_tokens = len(new.token_ids)
        self.token_ids[row, :num_tokens] = new.token_ids
        self.block_tables[row, : len(new.block_ids)] = new.block_ids
        self.num_blocks[row] = len(new.block_ids)
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.num_computed_tokens[row] = new.num_computed_tokens
        self.added_epochs[row] = self.epoch
        # Generated tokens in a new row mean that its prompt was answered before a preemption.
        if new.sampling.prompt_logprobs is not None and num_tokens == new.num_prompt_tokens:
            self.num_prompt_logprobs[row] = new.sampling.prompt_logprobs
        if kind := new.sampling.pooling:
            self.pooling[row] = POOLING_KINDS.index(kind)
        self.sampling.set_row(row, new.sampling, self.token_ids[row, :num_tokens], new.num_prompt_tokens)

    def _advance(self, rows: Int64Array, plan: StepPlan) -> None:
        """Bring rows that were held already up to the plan: the last sampled token, new blocks, progress."""
        if not len(rows):
            return
        self.num_computed_tokens[rows] = plan.running_num_computed_tokens
        # A row whose known tokens are all computed was sampled; it runs again with the token that it got.
        is_grown = self.num_computed_tokens[rows] == self.num_tokens[rows]
        given = np.array(plan.running_last_token_ids, np.int64)
        tokens = np.where(given >= 0, given, self.pending[rows])[is_grown]
        assert np.all((tokens >= 0) | (tokens == UNREAD)), "a row goes on only after its last token is there"
        grown = rows[is_grown]
        self.token_ids[grown, self.num_tokens[grown]] = tokens
        self.num_tokens[grown] += 1
        self.pending[rows] = NO_TOKEN
        if self.sampling.has_seen:
            for row, token in zip(grown.tolist(), tokens.tolist(), strict=True):
                self.sampling.add_output(row, token)
        for row, blocks in zip(rows.tolist(), plan.running_new_blocks, strict=True):
            if blocks:
                start = self.num_blocks[row]
                self.block_tables[row, start : start + len(blocks)] = blocks
                self.num_blocks[row] += len(blocks)

    def _release(self, request_id: str) -> None:
        """Drop a sequence if it is held; the last row takes its place, so that rows stay dense."""
        row = self._row_of.pop(request_id, None)
        if row is None:
            return
        last = self.num_rows - 1
        if row != last:
            self._move(last, row)
        self._clear(last)
        self.request_ids.pop()
        self.num_rows = last

    def _move(self, source: int, target: int) -> None:
        moved = self.request_ids[source]
        self.request_ids[target] = moved
        self._row_of[moved] = target
        num_blocks = max(self.num_blocks[source], self.num_blocks[target])
        num_tokens = max(self.num_tokens[source], self.num_tokens[target])
        self.block_tables[target, :num_blocks] = self.block_tables[source, :num_blocks]
        self.token_ids[target, :num_tokens] = self.token_ids[source, :num_tokens]
        for column in self._counts():
            column[target] = column[source]
        self.sampling.move_row(source, target)

    def _clear(self, row: int) -> None:
        self.block_tables[row, : self.num_blocks[row]] = 0
        self.token_ids[row, : self.num_tokens[row]] = 0
        for column in self._counts():
            column[row] = 0
        self.num_prompt_logprobs[row] = -1
        self.pooling[row] = NOT_POOLED
        self.pending[row] = NO_TOKEN
        self.sampling.clear_row(row)

    def _counts(self) -> tuple[Int64Array, ...]:
        return (
            self.num_blocks,
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_computed_tokens,
            self.num_prompt_logprobs,
            self.pooling,
            self.pending,
            self.sampled_places,
            self.added_epochs,
        )
