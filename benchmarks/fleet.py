"""A fleet of engines as discrete events: continuous batching and chunked prefill, with made-up step times."""

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from arrivals import Arrival

from vllm_obs.engine.synthetic.step_time import StepTimeModel


class Limits(NamedTuple):
    """An engine's limits: rows and tokens of a step, and prefixes in its cache, each of so many tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_prefixes: int
    num_prefix_tokens: int


@dataclass(eq=False)
class Job:
    """A request on its way through the fleet; moments in seconds."""

    arrival: Arrival
    client: int
    num_prompt_left: int = field(init=False)
    first_token_at: float = 0.0
    ended_at: float = 0.0

    def __post_init__(self) -> None:
        self.num_prompt_left = self.arrival.num_prompt_tokens


class Report(NamedTuple):
    """What an engine says of itself after a step; `num_taken` counts all it ever took, by client."""

    num_waiting: int
    num_running: int
    num_taken: tuple[int, ...]


class Engine:
    """One engine. A step begins with what lies in the inbox, and gives each prompt token and each row its time.

    Rows that decode are not moved one by one: a heap has the step in which each ends, a sum their context.
    """

    def __init__(self, model: StepTimeModel, limits: Limits, num_clients: int) -> None:
        self.inbox: list[Job] = []
        self.is_stepping = False
        self.num_prompt_left = 0
        self.num_output_left = 0
        self._model = model
        self._limits = limits
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []
        self._planned: list[tuple[Job, int]] = []
        self._num_context = 0
        self._num_steps = 0
        self._num_admitted = 0
        self._num_taken = [0] * num_clients
        self._prefixes: OrderedDict[int, None] = OrderedDict()

    @property
    def seconds_left(self) -> float:
        """The time that its rows and tokens will add to steps, all of it: what only an oracle knows."""
        model = self._model
        per_output = model.seconds_per_token + model.seconds_per_row
        return model.seconds_per_token * self.num_prompt_left + per_output * self.num_output_left

    def send(self, job: Job) -> None:
        """A request is on its way to this engine."""
        self.num_prompt_left += job.num_prompt_left
        self.num_output_left += job.arrival.num_output_tokens

    def begin_step(self) -> float | None:
        """Plan a step: its length in seconds, or None when there is nothing to do."""
        for job in self.inbox:
            self._num_taken[job.client] += 1
            self._waiting.append(job)
        self.inbox.clear()
        num_rows = len(self._decoding)
        num_tokens = num_rows + self._plan_prompts(self._limits.max_num_batched_tokens - num_rows)
        if not num_tokens:
            return None
        return self._model.seconds(num_tokens, num_rows + len(self._planned), self._num_context)

    def end_step(self, now: float) -> Report:
        """What the step gave, at that moment."""
        self._num_steps += 1
        self._num_context += len(self._decoding)
        self.num_output_left -= len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._num_steps:
            self._end(heapq.heappop(self._decoding)[2], now)
        for job, num_tokens in self._planned:
            self._advance(job, num_tokens, now)
        num_running = len(self._decoding) + len(self._prefilling)
        return Report(len(self._waiting), num_running, tuple(self._num_taken))

    def _plan_prompts(self, num_left: int) -> int:
        budget, self._planned = num_left, []
        for job in self._prefilling:
            num_left -= self._plan(job, num_left)
        num_rows = len(self._decoding) + len(self._prefilling)
        while self._waiting and num_left > 0 and num_rows < self._limits.max_num_seqs:
            job = self._waiting.popleft()
            self._reuse_prefix(job)
            self._prefilling.append(job)
            num_left -= self._plan(job, num_left)
            num_rows += 1
        return budget - num_left

    def _plan(self, job: Job, num_left: int) -> int:
        num_tokens = min(job.num_prompt_left, num_left)
        if num_tokens:
            self._planned.append((job, num_tokens))
        return num_tokens

    def _advance(self, job: Job, num_tokens: int, now: float) -> None:
        job.num_prompt_left -= num_tokens
        self.num_prompt_left -= num_tokens
        self._num_context += num_tokens
        if job.num_prompt_left:
            return
        self._prefilling.remove(job)
        job.first_token_at = now
        self.num_output_left -= 1
        num_more = job.arrival.num_output_tokens - 1
        if not num_more:
            self._end(job, now)
            return
        self._num_admitted += 1
        heapq.heappush(self._decoding, (self._num_steps + num_more, self._num_admitted, job))

    def _end(self, job: Job, now: float) -> None:
        job.ended_at = now
        self._num_context -= job.arrival.num_prompt_tokens + job.arrival.num_output_tokens - 1

    def _reuse_prefix(self, job: Job) -> None:
        copy, limits = job.arrival.copy, self._limits
        if not limits.num_prefix_tokens:
            return
        if copy in self._prefixes:
            num_cached = min(limits.num_prefix_tokens, job.num_prompt_left - 1)
            job.num_prompt_left -= num_cached
            self.num_prompt_left -= num_cached
            self._num_context += num_cached
        self._prefixes[copy] = None
        self._prefixes.move_to_end(copy)
        if len(self._prefixes) > limits.num_prefixes:
            self._prefixes.popitem(last=False)
