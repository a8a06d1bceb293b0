"""TritonSampler: every row of a step sampled by kernels, without a wait before the result is asked for."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.filtered_draw import DrawColumns, filtered_draw
from vllm_obs.engine.kernels.triton.logit_edits import PenaltyColumns, RowTokens, logit_bias, penalties
from vllm_obs.engine.kernels.triton.token_bitmask import token_bitmask
from vllm_obs.engine.messages import Logprobs
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import Need, SamplingBatch
from vllm_obs.engine.sampling.each_row import sample_rows
from vllm_obs.engine.sampling.edit_plan import Array, EditPlan, edit_plan
from vllm_obs.engine.sampling.launched import ComputeLogits, Known, Launched
from vllm_obs.engine.sampling.logprobs import position_of
from vllm_obs.engine.sampling.sampler import SampledTokens, failures, plant_faults
from vllm_obs.engine.sampling.triton_scores import TritonScorer
from vllm_obs.engine.worker.device_port import DevicePort

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchedSample:
    """What kernels are making: `fetch` waits for tokens, maxima before edits (if any), and log-probabilities."""

    tokens: torch.Tensor | None
    batch: SamplingBatch
    has_maxima: bool
    num_alternatives: list[int]
    fetch: Callable[[], list[Array]]

    def result(self) -> SampledTokens:
        """Waits for the device. A row fails as in `sampler.sample`."""
        fetched = iter(self.fetch())
        tokens = np.array(next(fetched), np.int64)
        is_missing = tokens < 0
        broken = ~np.isfinite(next(fetched).astype(np.float32)) if self.has_maxima else is_missing
        failed = broken | is_missing
        tokens[failed] = -1
        found = self._logprobs(fetched, failed)
        return SampledTokens(
            tokens.tolist(), found, failures(self.batch.request_ids, broken, is_missing & ~broken)
        )

    def _logprobs(self, fetched: Iterator[Array], failed: Array) -> list[tuple[str, Logprobs]]:
        if not (rows := self.batch.indices(Need.LOGPROBS)):
            return []
        every = Logprobs(*(np.array(column) for column in fetched))  # type: ignore[arg-type]
        return [
            (self.batch.request_ids[row], position_of(every, place, self.num_alternatives[place]))
            for place, row in enumerate(rows)
            if not failed[row]
        ]


@dataclass(frozen=True)
class TritonSampler:
    """The same tokens as `sampler.sample`, but where the sum of weights differs in its last bits."""

    configs: Configs
    port: DevicePort

    def launch(self, compute_logits: ComputeLogits, batch: SamplingBatch, masks: GrammarMasks | None) -> Launched:
        """Queue everything; what goes wrong with one row fails that one alone, by way of the other sampler."""
        counts = [batch.spec(row).logprobs or 0 for row in batch.indices(Need.LOGPROBS)]
        try:
            return self._launch(compute_logits(), batch, masks, counts)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            _logger.error("the sampler's kernels could not be launched", exc_info=error)
            return Known(sample_rows(compute_logits, batch, masks))

    def _launch(
        self, logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None, counts: list[int]
    ) -> LaunchedSample:
        plant_faults(logits, batch.request_ids)
        plan = edit_plan(batch, masks)
        wanted = np.array(batch.indices(Need.LOGPROBS), np.int64)
        arrays = [*_draw_arrays(batch), *plan.arrays, wanted]
        uploaded = iter(self.port.upload(arrays))
        columns = DrawColumns(*(next(uploaded) for _ in range(7)))
        edits = [next(uploaded) for _ in plan.arrays]
        wanted_rows = next(uploaded)
        is_kept = len(wanted) > 0 and (bool(plan) or len(wanted) < len(logits))
        raw = logits.index_select(0, wanted_rows) if is_kept else logits
        maxima = self._edit(logits, plan, edits) if plan else []
        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        filtered_draw(logits, columns, tokens, torch.empty_like(columns.top_ps), self.configs).run()
        found: Sequence[torch.Tensor] = ()
        if counts:
            chosen = tokens.index_select(0, wanted_rows).clamp_(min=0)
            found = TritonScorer(self.configs).scores(raw, chosen, max(counts))
        fetch = self.port.download([tokens, *maxima, *found])
        return LaunchedSample(tokens, batch, bool(maxima), counts, fetch)

    def _edit(self, logits: torch.Tensor, plan: EditPlan, uploaded: list[torch.Tensor]) -> list[torch.Tensor]:
        """Change the logits. Their maxima before that, which tell a broken row from one with nothing left."""
        maxima = TritonScorer(self.configs).maxima(logits)
        tensors = iter(uploaded)
        for _ in plan.masks:
            token_bitmask(logits, next(tensors), next(tensors), self.configs).run()
        if plan.biases is not None:
            biased = RowTokens(next(tensors), next(tensors), next(tensors), plan.biases.max_num_tokens)
            logit_bias(logits, biased, next(tensors), self.configs).run()
        if plan.penalties is not None:
            seen = RowTokens(next(tensors), next(tensors), next(tensors), plan.penalties.max_num_tokens)
            columns = PenaltyColumns(*(next(tensors) for _ in range(4)))
            penalties(logits, seen, columns, self.configs).run()
        return [maxima]


def _draw_arrays(batch: SamplingBatch) -> list[Array]:
    """The fields of DrawColumns; a row that is not random takes its best token."""
    columns, rows = batch.columns, batch.rows
    is_random = (batch.needs & Need.RANDOM) != 0
    return [
        np.where(is_random, columns.temperatures[rows], np.float32(0)),
        columns.top_ks[rows],
        columns.top_ps[rows],
        columns.min_ps[rows],
        columns.seeds[rows].view(np.int64),
        columns.sequence_indices[rows].view(np.int64),
        batch.num_tokens.astype(np.int64),
    ]
