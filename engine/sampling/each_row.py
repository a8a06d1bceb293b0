"""Sampling with a boundary around each row: what goes wrong with one fails that one alone."""

import logging
from collections.abc import Callable

import torch

from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.sampler import SampledTokens, sample

FAILED = "The request failed inside the engine."

logger = logging.getLogger(__name__)


def sample_rows(
    compute_logits: Callable[[], torch.Tensor], batch: SamplingBatch, masks: GrammarMasks | None
) -> SampledTokens:
    """`sample` of the whole batch; where that raises, of one row after the other, with logits computed anew.

    A row's token is the same either way. When several rows were to be sampled and none can be, it is no row's
    fault, and the first error is raised.
    """
    try:
        return sample(compute_logits(), batch, masks)
    except MemoryError:
        raise
    except Exception as error:
        sampled = _sample_each(compute_logits(), batch, masks)
        if len(sampled.failed) == len(batch.request_ids) > 1:
            raise
        logger.error("sampling failed for %d of %d rows", len(sampled.failed), len(batch.rows), exc_info=error)
        return sampled


def _sample_each(logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None) -> SampledTokens:
    whole = SampledTokens([], [], [])
    for index, request_id in enumerate(batch.request_ids):
        try:
            row = sample(logits[index : index + 1], batch.alone(index), masks)
        except MemoryError:
            raise
        except Exception:
            row = SampledTokens([-1], [], [(request_id, "internal_error", FAILED)])
        whole.token_ids.extend(row.token_ids)
        whole.logprobs.extend(row.logprobs)
        whole.failed.extend(row.failed)
    return whole
