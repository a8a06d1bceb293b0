"""CoreBooks: what the simulated core recorded, added up as it comes, and what must hold between the entries."""

from collections import Counter

from vllm_obs.telemetry.recorder import NullRecorder
from vllm_obs.telemetry.records import Record, RequestReleased, RequestTaken, StepPlanned

MAX_LOSSES = 3
"""How often a sequence may be preempted without a token between."""


class CoreBooks(NullRecorder):
    """A recorder that checks: who is released was taken, as often; who is preempted gets on between."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.reached: Counter[str] = Counter()
        self.most_losses = 0
        self.num_computed = 0
        self.live: set[str] = set()
        self.waiting: dict[str, int] = {}
        """The prompt tokens of each sequence that no step has taken yet."""
        self._delivered: Counter[str] = Counter()
        self._num_taken: Counter[str] = Counter()
        self._losses: dict[str, tuple[int, int]] = {}
        self._num_outputs: Counter[str] = Counter()
        self._num_endings: Counter[str] = Counter()

    def delivered(self, request_id: str) -> None:
        """An ADD of this generation came."""
        self._delivered[request_id] += 1

    def record(self, record: Record) -> None:
        """Add it up."""
        if isinstance(record, RequestTaken):
            self._take(record.request_id)
            self.waiting[record.request_id] = record.num_prompt_tokens
        elif isinstance(record, RequestReleased):
            assert record.request_id in self.live, f"{record.request_id} was released twice, or never taken"
            self.live.discard(record.request_id)
            self.waiting.pop(record.request_id, None)
        elif isinstance(record, StepPlanned):
            self._plan(record)

    def told(self, request_id: str, num_tokens: int, is_ending: bool) -> None:
        """A row about a sequence goes out."""
        assert self._num_endings[request_id] < self._delivered[request_id], f"{request_id}: a row after its ending"
        self._num_outputs[request_id] += num_tokens
        self._num_endings[request_id] += is_ending

    def _take(self, request_id: str) -> None:
        self._num_taken[request_id] += 1
        assert self._num_taken[request_id] <= self._delivered[request_id], f"{request_id} was taken from nowhere"
        assert request_id not in self.live, f"{request_id} was taken twice"
        self.live.add(request_id)
        self._losses.pop(request_id, None)

    def _plan(self, planned: StepPlanned) -> None:
        self.num_steps += 1
        self.num_computed += sum(planned.num_scheduled_tokens)
        for request_id in planned.request_ids:
            self.waiting.pop(request_id, None)
        self.reached["recompute"] += len(planned.resumed_ids)
        self.reached["preemption"] += len(planned.preempted_ids)
        for reason in (*planned.left_out_reasons, planned.head_reason):
            self.reached[f"wait: {reason}"] += bool(reason)
        for request_id in planned.preempted_ids:
            num_outputs, num_losses = self._losses.get(request_id, (-1, 0))
            is_again = num_outputs == self._num_outputs[request_id]
            num_losses = num_losses + 1 if is_again else 1
            self._losses[request_id] = (self._num_outputs[request_id], num_losses)
            self.most_losses = max(self.most_losses, num_losses)
            assert num_losses <= MAX_LOSSES, f"{request_id} was preempted {num_losses} times without a token"
