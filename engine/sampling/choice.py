"""The choice of one token per row: the best for greedy rows, a drawn one for the others."""

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.draw import uniforms
from vllm_obs.engine.sampling.inverse_cdf import chunked, draw_tokens
from vllm_obs.engine.sampling.sorted_truncation import truncated_weights
from vllm_obs.engine.sampling.truncation import kept_tokens

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def choose_tokens(logits: torch.Tensor, maxima: torch.Tensor, batch: SamplingBatch) -> Int64Array:
    """int64 (R,) for finite float32 logits (R, vocab) with row maxima (R,); may overwrite the logits."""
    if not batch.needed & Need.RANDOM:
        return _best(logits, None)
    needs = batch.needs & (Need.RANDOM | Need.FILTERS)
    numbers = uniforms(
        batch.columns.seeds[batch.rows],
        batch.columns.sequence_indices[batch.rows],
        batch.num_tokens.astype(np.uint64),
    )
    tokens = np.empty(len(batch.rows), np.int64)
    if len(filtered := np.flatnonzero(needs == Need.RANDOM | Need.FILTERS)):
        draw = _draw_filtered if logits.device.type == "cpu" else _draw_sorted
        tokens[filtered] = draw(logits, filtered, numbers[filtered], batch)
    if len(greedy := np.flatnonzero(needs == 0)):
        tokens[greedy] = _best(logits, greedy)
    if len(plain := np.flatnonzero(needs == Need.RANDOM)):  # last, as it overwrites
        temperatures = batch.columns.temperatures[batch.rows[plain]]
        tokens[plain] = _draw_plain(
            *_rows_of(logits, maxima, plain),
            temperatures=torch.from_numpy(temperatures).to(logits.device),
            numbers=numbers[plain],
        )
    return tokens


def _best(logits: torch.Tensor, rows: Int64Array | None) -> Int64Array:
    """The first best token of each row; numpy's argmax is vectorised on CPUs where torch's is not."""
    if logits.device.type != "cpu":
        best: Int64Array = logits.argmax(-1).cpu().numpy()
        return best if rows is None else best[rows]
    values = logits.numpy()
    return values.argmax(-1) if rows is None else np.array([values[row].argmax() for row in rows])


def _rows_of(logits: torch.Tensor, maxima: torch.Tensor, rows: Int64Array) -> tuple[torch.Tensor, torch.Tensor]:
    if len(rows) == len(logits):
        return logits, maxima
    chosen = torch.from_numpy(rows).to(logits.device)
    return logits[chosen], maxima[chosen]


def _draw_plain(
    logits: torch.Tensor, maxima: torch.Tensor, temperatures: torch.Tensor, numbers: Float64Array
) -> Int64Array:
    """Draw from whole rows; the logits become weights in place."""
    weights = logits.sub_(maxima[:, None]).mul_(temperatures.reciprocal()[:, None]).exp_()
    tokens: Int64Array = draw_tokens(weights, torch.from_numpy(numbers).to(logits.device)).cpu().numpy()
    return tokens


def _draw_filtered(
    logits: torch.Tensor, rows: Int64Array, numbers: Float64Array, batch: SamplingBatch
) -> Int64Array:
    """Row by row on a CPU: only a few candidates of each are ever sorted."""
    values = logits.numpy()
    chunks = chunked(logits, -torch.inf)
    tokens = np.empty(len(rows), np.int64)
    for place, row in enumerate(rows.tolist()):
        ids, weights = kept_tokens(values[row], chunks[row].amax(-1).numpy(), batch.filters(row))
        upto = np.cumsum(weights, dtype=np.float64)
        drawn = np.searchsorted(upto, numbers[place] * upto[-1], side="right")
        tokens[place] = ids[min(drawn, np.searchsorted(upto, upto[-1]))]
    return tokens


def _draw_sorted(
    logits: torch.Tensor, rows: Int64Array, numbers: Float64Array, batch: SamplingBatch
) -> Int64Array:
    """All rows at once on an accelerator, where sorting is cheap and waiting for it is not."""
    columns = zip(*(batch.filters(row) for row in rows.tolist()), strict=True)
    temperature, top_k, top_p, min_p = (torch.tensor(column, device=logits.device) for column in columns)
    chosen = logits[torch.from_numpy(rows).to(logits.device)]
    weights = truncated_weights(chosen, temperature, top_k, top_p, min_p)
    tokens: Int64Array = draw_tokens(weights, torch.from_numpy(numbers).to(logits.device)).cpu().numpy()
    return tokens
