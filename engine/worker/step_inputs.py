"""What one forward pass reads, worked out from the input batch with a few whole-array operations."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.messages import Int32Array
from vllm_obs.engine.pooling.kinds import POOLING_KINDS, PoolingKind
from vllm_obs.engine.worker.device_port import DevicePort
from vllm_obs.engine.worker.input_batch import NOT_POOLED, UNREAD, InputBatch

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PromptSpan:
    """Prompt positions of one sequence whose log-probabilities this step computes.

    `hidden_start` is where their hidden states begin; `next_token_ids` (int32) are what each predicts.
    """

    request_id: str
    hidden_start: int
    num_best: int
    next_token_ids: Int32Array


@dataclass(frozen=True)
class PoolSpan:
    """Hidden states of one sequence, from `hidden_start` on, that its vector is made of.

    `is_last` where the prompt of `num_prompt_tokens` tokens is over with them.
    """

    request_id: str
    kind: PoolingKind
    hidden_start: int
    num_hidden: int
    num_prompt_tokens: int
    is_last: bool


@dataclass(frozen=True)
class StepInputs:
    """token_ids and positions: int64 (T,). `sampled_rows` (input batch rows, in plan order) own the first hidden
    states, in that order; those of `prompt_spans` follow, then those of `pool_spans`. `unread`, int64 (2, N), says
    which of the tokens are still on the device, and where among those sampled last.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionBatch
    sampled_rows: Int64Array
    prompt_spans: list[PromptSpan]
    pool_spans: list[PoolSpan]
    unread: torch.Tensor | None = None

    def feed(self, sampled: torch.Tensor) -> None:
        """Put in the tokens that the host does not know, from those sampled last, int64 (R,), on the device.

        A row that failed has none; what comes of it is nobody's.
        """
        if self.unread is not None:
            places, sources = self.unread
            self.token_ids.index_copy_(0, places, sampled.index_select(0, sources).clamp_(min=0))


def prepare(batch: InputBatch, rows: Int64Array, num_scheduled: Int64Array, port: DevicePort) -> StepInputs:
    """Inputs for `rows` (plan order) with so many tokens each, both int64 (B,), on their way to the device.

    The flat token axis has rows of one token first, then the longer ones, each in plan order.
    """
    order = np.argsort(num_scheduled > 1, kind="stable")
    ordered, query_lens = rows[order], num_scheduled[order]
    starts = batch.num_computed_tokens[ordered]
    seq_lens = starts + query_lens
    assert np.all(seq_lens <= batch.num_tokens[ordered]), "a plan computes known tokens only"
    ends = np.cumsum(query_lens)
    token_rows = np.repeat(ordered, query_lens)
    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - query_lens), query_lens)
    is_sampled = np.empty(len(rows), np.bool_)
    is_sampled[order] = (seq_lens == batch.num_tokens[ordered]) & (batch.pooling[ordered] == NOT_POOLED)
    last_tokens = np.empty(len(rows), np.int64)
    last_tokens[order] = ends - 1
    token_starts = ends - query_lens
    spans, span_tokens = _prompt_spans(batch, ordered, token_starts, seq_lens, int(is_sampled.sum()))
    num_hidden = int(is_sampled.sum()) + sum(map(len, span_tokens))
    pool_spans, pool_tokens = _pool_spans(batch, ordered, token_starts, seq_lens, num_hidden)
    token_ids = batch.token_ids[token_rows, positions].astype(np.int64)
    arrays = [
        token_ids,
        positions,
        _tables(batch, ordered, int(seq_lens.max()), port.table_multiple),
        _slots(batch, token_rows, positions),
        np.concatenate([last_tokens[is_sampled], *span_tokens, *pool_tokens]),
    ]
    if batch.has_unread and len(places := np.flatnonzero(token_ids == UNREAD)):
        arrays.append(np.stack([places, batch.sampled_places[token_rows[places]]]))
    token_tensor, position_tensor, block_tables, slot_mapping, logits_indices, *unread = port.upload(arrays)
    return StepInputs(
        token_ids=token_tensor,
        positions=position_tensor,
        attention=AttentionBatch(
            num_decodes=int(np.count_nonzero(query_lens == 1)),
            query_lens=query_lens.tolist(),
            seq_lens=seq_lens.tolist(),
            block_tables=block_tables,
            slot_mapping=slot_mapping,
            logits_indices=logits_indices,
        ),
        sampled_rows=rows[is_sampled],
        prompt_spans=spans,
        pool_spans=pool_spans,
        unread=unread[0] if unread else None,
    )


def _tables(batch: InputBatch, rows: Int64Array, max_seq_len: int, multiple: int) -> Int64Array:
    """Block tables as wide as the longest row needs, or the next multiple of so many blocks."""
    num_blocks = -(-max_seq_len // batch.block_size)
    tables: Int64Array = batch.block_tables[rows, :num_blocks]
    if missing := -num_blocks % multiple:
        tables = np.pad(tables, ((0, 0), (0, missing)))
    return tables


def _slots(batch: InputBatch, token_rows: Int64Array, positions: Int64Array) -> Int64Array:
    blocks, offsets = np.divmod(positions, batch.block_size)
    assert np.all(blocks < batch.num_blocks[token_rows]), "a plan's blocks cover the tokens it computes"
    slots: Int64Array = batch.block_tables[token_rows, blocks] * batch.block_size + offsets
    return slots


def _prompt_spans(
    batch: InputBatch, rows: Int64Array, token_starts: Int64Array, seq_lens: Int64Array, num_sampled: int
) -> tuple[list[PromptSpan], list[Int64Array]]:
    """Spans of the rows that asked for prompt log-probabilities, and their places in the flat token axis.

    Position p predicts token p + 1, so the last prompt position is left out.
    """
    spans: list[PromptSpan] = []
    tokens: list[Int64Array] = []
    hidden_start = num_sampled
    for place in np.flatnonzero(batch.num_prompt_logprobs[rows] >= 0).tolist():
        row = int(rows[place])
        start = int(batch.num_computed_tokens[row])
        end = min(int(seq_lens[place]), int(batch.num_prompt_tokens[row]) - 1)
        if end <= start:
            continue
        spans.append(
            PromptSpan(
                request_id=batch.request_ids[row],
                hidden_start=hidden_start,
                num_best=int(batch.num_prompt_logprobs[row]),
                next_token_ids=batch.token_ids[row, start + 1 : end + 1],
            )
        )
        tokens.append(np.arange(end - start) + token_starts[place])
        hidden_start += end - start
    return spans, tokens


def _pool_spans(
    batch: InputBatch, rows: Int64Array, token_starts: Int64Array, seq_lens: Int64Array, hidden_start: int
) -> tuple[list[PoolSpan], list[Int64Array]]:
    """Spans of the rows that are pooled, and their places in the flat token axis."""
    spans: list[PoolSpan] = []
    tokens: list[Int64Array] = []
    for place in np.flatnonzero(batch.pooling[rows] != NOT_POOLED).tolist():
        row = int(rows[place])
        kind = POOLING_KINDS[int(batch.pooling[row])]
        start, end = int(batch.num_computed_tokens[row]), int(seq_lens[place])
        num_tokens = int(batch.num_tokens[row])
        wanted = _pooled_positions(kind, start, end, num_tokens)
        if not wanted and end < num_tokens:
            continue
        is_last = end == num_tokens
        spans.append(PoolSpan(batch.request_ids[row], kind, hidden_start, len(wanted), num_tokens, is_last))
        tokens.append(np.array(wanted, np.int64) - start + token_starts[place])
        hidden_start += len(wanted)
    return spans, tokens


def _pooled_positions(kind: PoolingKind, start: int, end: int, num_tokens: int) -> range:
    """Those positions of a chunk whose hidden states count."""
    if kind == "mean":
        return range(start, end)
    position = 0 if kind == "cls" else num_tokens - 1
    return range(max(start, position), min(end, position + 1))
