"""Runs plans on one device: keeps the input batch, calls the model, samples if that is this rank's part."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.model.interface import DecoderModel, PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan, WorkerMoments
from vllm_obs.engine.sampling.launched import make_sampler
from vllm_obs.engine.worker.device_clock import DeviceClock
from vllm_obs.engine.worker.device_port import DevicePort, make_port
from vllm_obs.engine.worker.execution import ON_THE_HOST, Execution
from vllm_obs.engine.worker.flight import Flight
from vllm_obs.engine.worker.graph_buckets import eagerly
from vllm_obs.engine.worker.input_batch import InputBatch
from vllm_obs.engine.worker.pooler import NO_VECTORS, Pooler
from vllm_obs.engine.worker.prompt_scores import PromptScores
from vllm_obs.engine.worker.step_inputs import StepInputs, prepare
from vllm_obs.telemetry.records import EagerReason

if TYPE_CHECKING:
    from vllm_obs.engine.worker.decode_graphs import DecodeGraphs


class ModelRunner:
    """One model on one device with its paged cache. Calls come in pairs: execute_model, then sample_tokens.

    Or execute_model, then launch_sampling, whose answer may be asked for after the next pair: what was sampled
    goes into the next step on the device. The model may be a part of one, whose other parts belong to other ranks:
    each runs every plan, and one samples.
    """

    def __init__(
        self,
        config: VllmConfig,
        model: DecoderModel,
        kv_cache: PagedKVCache,
        rank: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        on_layer: Progress = unwatched,
        port: DevicePort | None = None,
    ) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self.graphs: DecodeGraphs | None = None
        self.eager_reason: EagerReason = "no_gpu"
        """Why there are no graphs, where there are none."""
        self._rank = rank
        self._is_output_rank = rank == config.parallel.output_rank
        self._makes_logits = Partition.of_rank(config.parallel, rank).is_last_stage
        self._clock = clock
        self._on_layer = on_layer
        self._port = port if port is not None else make_port(config.model.device)
        self._device_clock = DeviceClock(self._port)
        self._sampler = make_sampler(model, self._port)
        vocab_size = config.model.architecture.vocab_size
        self._prompt_scores = PromptScores.of(model, vocab_size, on_layer, self._port)
        self.input_batch = InputBatch(
            config.scheduler.max_num_seqs, config.model.max_model_len, config.cache.block_size, vocab_size
        )
        self._pooler = Pooler(self._port)
        self._plan: StepPlan | None = None
        self._inputs: StepInputs | None = None
        self._hidden: torch.Tensor | None = None
        self._flights: deque[Flight] = deque()
        self._execution = ON_THE_HOST
        self._received_at = self._prepared_at = self._forwarded_at = 0

    def execute_model(self, plan: StepPlan) -> None:
        """Apply the plan and run its forward pass; hidden states wait for sampling."""
        self.begin(plan)
        self.forward()

    def begin(self, plan: StepPlan) -> None:
        """Apply the plan to the input batch and send what its forward pass reads on its way to the device."""
        self._plan, self._inputs, self._hidden = plan, None, None
        self._received_at = self._clock()
        self._pooler.forget(plan.released_ids)
        if self._flights:
            self._take_old_answers()
        rows = self.input_batch.update(plan)
        if len(rows):
            num_scheduled = np.array(plan.num_scheduled_tokens, np.int64)
            self._inputs = prepare(self.input_batch, rows, num_scheduled, self._port)
        self._prepared_at = self._clock()

    @torch.inference_mode()
    def forward(self) -> None:
        """Run the forward pass of the plan begun last, if it has rows."""
        if (inputs := self._inputs) is not None:
            device_ns = self._device_clock.take_ns()
            self._device_clock.begin()
            if self._flights and (sampled := self._flights[-1].tokens) is not None:
                inputs.feed(sampled)
            self._hidden = self._run(inputs, device_ns)
        self._forwarded_at = self._clock()

    def take_execution(self) -> Execution:
        """How the step that was sampled last was run, for its record."""
        execution, self._execution = self._execution, ON_THE_HOST
        return execution

    def sample_tokens(self, masks: GrammarMasks | None) -> ModelRunnerOutput:
        """Sample the rows of the plan that ran last; its moments cover both calls."""
        return self.answer(self.launch_sampling(masks))

    @torch.inference_mode()
    def launch_sampling(self, masks: GrammarMasks | None) -> Flight:
        """Queue the sampling of the rows of the plan that ran last, for `answer` to wait for."""
        plan, inputs, hidden = self._plan, self._inputs, self._hidden
        assert plan is not None, "sampling follows execute_model"
        self._plan = self._inputs = self._hidden = None
        if inputs is not None and hidden is None:
            raise RuntimeError(f"the forward pass of step {plan.step} did not finish")
        flight = Flight(plan, self._moments(), self._clock)
        if inputs is not None and hidden is not None:
            if self._is_output_rank:
                self._launch(flight, inputs, hidden, masks)
            elif self._makes_logits:
                self._lend_logits(inputs, hidden)
            self._device_clock.end()
        return flight

    def answer(self, flight: Flight) -> ModelRunnerOutput:
        """The answer of a step. Those before it are taken first."""
        while self._flights and self._flights[0] is not flight and flight in self._flights:
            self._take(self._flights[0])
        return flight.taken if flight.taken is not None else self._take(flight)

    def read_answers(self) -> None:
        """Wait for all steps that are under way."""
        while self._flights:
            self._take(self._flights[0])

    def _run(self, inputs: StepInputs, device_ns: int) -> torch.Tensor:
        """Hidden states, by a graph where one fits."""
        tokens, positions, attention = inputs.token_ids, inputs.positions, inputs.attention
        graphs = self.graphs
        use = eagerly(self.eager_reason) if graphs is None else graphs.choose(attention)
        self._execution = Execution(use.bucket, use.num_padded, use.reason, device_ns)
        if graphs is not None and use.is_graph:
            self._on_layer()
            return graphs.run(use, tokens, positions, attention)
        return self.model.forward(tokens, positions, attention, self.kv_cache, self._on_layer)

    def _launch(
        self, flight: Flight, inputs: StepInputs, hidden: torch.Tensor, masks: GrammarMasks | None
    ) -> None:
        for span in inputs.prompt_spans:
            flight.prompts.append((span.request_id, self._prompt_scores.launch(span, hidden)))
        if len(inputs.sampled_rows):
            self._launch_rows(flight, inputs, hidden[: len(inputs.sampled_rows)], masks)
        if inputs.pool_spans:
            flight.vectors = self._pooler.launch(inputs.pool_spans, hidden)
        if flight.tokens is None:
            self._take_at_once(flight)

    def _launch_rows(
        self, flight: Flight, inputs: StepInputs, hidden: torch.Tensor, masks: GrammarMasks | None
    ) -> None:
        rows, batch = inputs.sampled_rows, self.input_batch.sampling_batch(inputs.sampled_rows)
        launched = self._sampler.launch(lambda: self.model.compute_logits(hidden), batch, masks)
        flight.rows, flight.batch, flight.launched = rows, batch, launched
        flight.epoch = self.input_batch.epoch
        if launched.tokens is not None:
            self.input_batch.note_unread(rows)
            self._flights.append(flight)

    def _take_at_once(self, flight: Flight) -> None:
        """What the host has sampled goes into the next plan. It waited for the device: so the others are there."""
        is_under_way = bool(flight.prompts) or flight.vectors is not NO_VECTORS
        if flight.launched is not None:
            self.read_answers()
        elif self._flights or is_under_way:
            return
        self._take(flight)

    def _take_old_answers(self) -> None:
        """Before a plan: of one step what was sampled may stay on the device, unless a row is sampled by it."""
        num_kept = 0 if self.input_batch.sampling.reads_outputs else 1
        while len(self._flights) > num_kept:
            self._take(self._flights[0])

    def _take(self, flight: Flight) -> ModelRunnerOutput:
        if flight in self._flights:
            self._flights.remove(flight)  # first: what cannot be read now cannot be read later either
        flight.taken, sampled = flight.answer()
        if flight.rows is not None and flight.batch is not None:
            if flight.epoch == self.input_batch.epoch:
                self.input_batch.note_sampled(flight.rows, sampled.token_ids)
            else:
                self.input_batch.note_read(flight.epoch, flight.batch.request_ids, sampled.token_ids)
        return flight.taken

    def _lend_logits(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        """Make this shard's part of all the logits that the output rank asks for, in its order."""
        for span in inputs.prompt_spans:
            self._prompt_scores.lend(span, hidden)
        if len(inputs.sampled_rows):
            self.model.compute_logits(hidden[: len(inputs.sampled_rows)])

    def _moments(self) -> WorkerMoments:
        """Those of the step so far."""
        return WorkerMoments(
            rank=self._rank,
            received_at=self._received_at,
            prepared_at=self._prepared_at,
            forwarded_at=self._forwarded_at,
            sample_begun_at=self._clock(),
            sampled_at=0,
        )
