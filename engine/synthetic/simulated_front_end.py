"""SimulatedFrontEnd: the API server of a simulated run, which sends what arrives and records what comes back."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, FinishReason, SamplingSpec
from vllm_obs.engine.model.source import SYNTHETIC_MODEL
from vllm_obs.engine.synthetic.prompts import prompt_of
from vllm_obs.engine.synthetic.regimes import Arrival
from vllm_obs.engine.synthetic.simulated_ring import SimulatedSource, TakeRecord
from vllm_obs.telemetry.records import (
    HttpRequestEnded,
    LoopSampled,
    OutputsTaken,
    RequestEnded,
    RequestSubmitted,
)

_PARSE_NS = 60_000
_TOKENIZE_NS = 90_000
_SUBMIT_NS = 20_000
_TAKE_NS = 110_000
_ROW_NS = 6_000
_DELIVER_NS = 140_000
_SAMPLE_EVERY_NS = 1_000_000_000
_BYTES_A_TOKEN = 6


@dataclass
class _Open:
    """A sequence that has not ended."""

    submitted: RequestSubmitted
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    first_token_at: int = 0
    last_token_at: int = 0
    first_byte_at: int = 0


@dataclass(frozen=True)
class ServerTurns:
    """The API servers, which take requests in turns; of all requests those of one of `num_engines` are here."""

    servers: Sequence[SimulatedSource]
    engine_index: int = 0
    num_engines: int = 1
    num_before: int = 0

    def number(self, place: int) -> int:
        """The number among all requests of the one that is at this place here."""
        return self.engine_index + self.num_engines * (self.num_before + place)

    def client_index(self, place: int) -> int:
        """The API server that takes it."""
        return place % len(self.servers)


class SimulatedFrontEnd:
    """Told of time by `submit_until`, and of the core's messages by `take`; writes the records of both.

    Every part of its work takes the same short time, so that a simulated run has each stage a live one has.
    """

    def __init__(self, turns: ServerTurns, begun_at: int, arrivals: Sequence[Arrival], write: TakeRecord):
        self._turns = turns
        self._begun_at = begun_at
        self._arrivals = deque(arrivals)
        self._write = write
        self._sent: deque[EngineCoreRequest] = deque()
        self._open: dict[str, _Open] = {}
        self._num_submitted = 0
        self._next_sample_at = begun_at + _SAMPLE_EVERY_NS

    @property
    def next_arrival_at(self) -> int | None:
        """When the next request is with the core; None after the last."""
        if self._sent:
            return self._sent[0].submitted_at
        return _submitted_at(self._received_at(self._arrivals[0]), self._arrivals[0]) if self._arrivals else None

    @property
    def num_open(self) -> int:
        """Sequences submitted and not ended."""
        return len(self._open)

    def submit_until(self, moment: int) -> None:
        """Send all that has been received and tokenised by that moment."""
        while self._arrivals:
            received_at = self._received_at(self._arrivals[0])
            if _submitted_at(received_at, self._arrivals[0]) > moment:
                break
            self._submit(self._arrivals.popleft(), received_at)
        while self._next_sample_at <= moment:
            for index, source in enumerate(self._turns.servers):
                num_open = sum(each.submitted.client_index == index for each in self._open.values())
                sample = LoopSampled(index, self._next_sample_at, 0.0004, num_open, num_open, 0)
                self._write(self._next_sample_at, source, sample)
            self._next_sample_at += _SAMPLE_EVERY_NS

    def requests(self) -> Iterator[EngineCoreRequest]:
        """What was sent since the last time, in order."""
        while self._sent:
            yield self._sent.popleft()

    def take(self, outputs: EngineCoreOutputs) -> None:
        """One step's message: tokens become text, and what ended is delivered."""
        taken_at = outputs.sent_at + _TAKE_NS
        processed_at = taken_at + _ROW_NS * (1 + len(outputs.request_ids))
        errors = {row: reason for row, reason, _ in outputs.errors}
        for row, request_id in enumerate(outputs.request_ids):
            found = self._open[request_id]
            ended_at = taken_at + _ROW_NS * (1 + row)
            self._advance(found, outputs, row, ended_at)
            if outputs.finish_reasons[row] >= 0:
                reason = FinishReason(outputs.finish_reasons[row]).label
                self._end(found, reason, errors.get(row, ""), (taken_at, ended_at))
        taken = OutputsTaken(
            step=outputs.step,
            engine_index=outputs.engine_index,
            client_index=outputs.client_index,
            sampled_at=outputs.sampled_at,
            sent_at=outputs.sent_at,
            taken_at=taken_at,
            processed_at=processed_at,
            num_sequences=len(outputs.request_ids),
        )
        self._write(processed_at, self._turns.servers[outputs.client_index], taken)

    def _received_at(self, arrival: Arrival) -> int:
        return self._begun_at + int(arrival.at_seconds * 1e9)

    def _submit(self, arrival: Arrival, received_at: int) -> None:
        number, client_index = (
            self._turns.number(self._num_submitted),
            self._turns.client_index(self._num_submitted),
        )
        request_id = f"req-{number:06d}-0"
        submitted_at = _submitted_at(received_at, arrival)
        submitted = RequestSubmitted(
            request_id=request_id,
            client_index=client_index,
            http_id=request_id[:-2],
            external_id=request_id[:-2],
            sequence_index=0,
            num_sequences=1,
            num_prompts=1,
            operation="text_completion",
            is_streamed=True,
            model=SYNTHETIC_MODEL,
            trace_parent="",
            received_at=received_at,
            parsed_at=received_at + _PARSE_NS,
            rendered_at=received_at + _PARSE_NS,
            tokenized_at=submitted_at - _SUBMIT_NS,
            submitted_at=submitted_at,
            num_prompt_tokens=arrival.num_prompt_tokens,
            max_tokens=arrival.max_tokens,
            priority=0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            account=arrival.account,
        )
        sampling = SamplingSpec(seed=number, max_tokens=arrival.max_tokens)
        prompt = prompt_of(arrival, number)
        request = EngineCoreRequest(request_id, client_index, 0, prompt, sampling, 0, None, submitted_at)
        self._num_submitted += 1
        self._open[request_id] = _Open(submitted)
        self._sent.append(request)
        self._write(submitted_at, self._turns.servers[client_index], submitted)

    def _advance(self, found: _Open, outputs: EngineCoreOutputs, row: int, at: int) -> None:
        found.num_cached_tokens = max(found.num_cached_tokens, outputs.num_cached_tokens[row])
        if outputs.num_new_tokens[row]:
            found.num_output_tokens += outputs.num_new_tokens[row]
            found.first_token_at = found.first_token_at or outputs.sampled_at
            found.last_token_at = outputs.sampled_at
            found.first_byte_at = found.first_byte_at or at + _DELIVER_NS

    def _end(self, found: _Open, reason: str, error: str, moments: tuple[int, int]) -> None:
        submitted, (taken_at, ended_at) = found.submitted, moments
        source = self._turns.servers[submitted.client_index]
        del self._open[submitted.request_id]
        ended = RequestEnded(
            request_id=submitted.request_id,
            client_index=submitted.client_index,
            finish_reason=reason,
            error=error,
            num_prompt_tokens=submitted.num_prompt_tokens,
            num_output_tokens=found.num_output_tokens,
            num_cached_tokens=found.num_cached_tokens,
            first_token_at=found.first_token_at,
            last_token_at=found.last_token_at,
            taken_at=taken_at,
            ended_at=ended_at,
        )
        self._write(ended_at, source, ended)
        delivered_at = ended_at + _DELIVER_NS
        http = HttpRequestEnded(
            http_id=submitted.http_id,
            client_index=submitted.client_index,
            external_id=submitted.external_id,
            handler="/v1/completions",
            method="POST",
            status=500 if error else 200,
            reason=error,
            trace_parent="",
            received_at=submitted.received_at,
            first_byte_at=found.first_byte_at or delivered_at,
            ended_at=delivered_at,
            num_request_bytes=_BYTES_A_TOKEN * submitted.num_prompt_tokens,
            num_response_bytes=_BYTES_A_TOKEN * found.num_output_tokens,
        )
        self._write(delivered_at, source, http)


def _submitted_at(received_at: int, arrival: Arrival) -> int:
    return received_at + _PARSE_NS + _TOKENIZE_NS + 20 * arrival.num_prompt_tokens + _SUBMIT_NS
