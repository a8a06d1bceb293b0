"""random_runs: fact streams of whole runs in which anything may happen to a sequence at any moment."""

from dataclasses import dataclass, field
from typing import Any

from fact_stream import FactSequence, FactStream
from hypothesis import strategies as st

from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.view import Source

MAX_RUNNING = 4
ACTIONS = ("submit", "submit", *["step"] * 8, "abort", "pause", "fail", "stop_string", "refuse")
REASONS = ("token_budget", "kv_blocks", "step_in_progress")


@dataclass
class RandomRun:
    """Drives a FactStream as a scheduler would: first come, first served, with chunks, preemption and aborts."""

    draw: Any
    stream: FactStream = field(default_factory=lambda: FactStream(num_blocks=256))
    num_submitted: int = 0

    def run(self, num_actions: int) -> FactStream:
        """So many random actions, after which everybody is ended."""
        self.stream.describe()
        for _ in range(num_actions):
            action = self.draw(st.sampled_from(ACTIONS))
            getattr(self, f"_{action}")()
            self.stream.pass_time(self.draw(st.integers(0, 3_000_000)))
        for request_id in self._live():
            self.stream.abort(request_id)
        return self.stream

    def _submit(self) -> None:
        self.num_submitted += 1
        num_tokens = self.draw(st.integers(1, 20))
        self.stream.submit(f"r-{self.num_submitted}", num_prompt_tokens=num_tokens)

    def _step(self, **options: Any) -> None:
        running = [each for each in self._live() if self._of(each).is_running]
        preempted = running[-1:] if self._seldom() else []
        running = running[: len(running) - len(preempted)]
        left_out = {each: self.draw(st.sampled_from(REASONS)) for each in running if self._seldom()}
        rows = {each: self._num_tokens(each) for each in running if each not in left_out}
        waiting = [each for each in self._live() if not self._of(each).is_running and each not in preempted]
        cached: dict[str, int] = {}
        if not preempted:
            admitted = waiting[: max(0, min(len(waiting), MAX_RUNNING - len(running) - self._seldom()))]
            cached = {each: self._num_cached(each) for each in admitted}
            rows |= {each: self._num_tokens(each, cached[each]) for each in admitted}
        reason = self.draw(st.sampled_from(("kv_blocks", "max_num_seqs", "token_budget")))
        self.stream.step(
            rows, cached=cached, preempted=preempted, left_out=left_out, head_reason=reason, **options
        )
        self._finish_some(list(rows))

    def _finish_some(self, rows: list[str]) -> None:
        for request_id in rows:
            sequence = self._of(request_id)
            if (
                sequence.is_live
                and not sequence.is_stopped
                and sequence.num_output_tokens
                and not self.draw(st.integers(0, 3))
            ):
                self.stream.finish(request_id, self.draw(st.sampled_from(("stop", "length"))))

    def _num_tokens(self, request_id: str, num_cached: int = 0) -> int:
        sequence = self._of(request_id)
        num_left = sequence.num_tokens - (sequence.num_computed if sequence.is_running else num_cached)
        return int(self.draw(st.integers(1, num_left))) if self._seldom() else num_left

    def _num_cached(self, request_id: str) -> int:
        num_known = min(sum(map(bool, self.stream.blocks.hashes)), (self._of(request_id).num_tokens - 1) // 4)
        return 4 * int(self.draw(st.integers(0, num_known)))

    def _seldom(self) -> bool:
        return bool(self.draw(st.integers(0, 4)) == 4)

    def _abort(self) -> None:
        if live := self._live():
            self.stream.abort(self.draw(st.sampled_from(live)))

    def _pause(self) -> None:
        self.stream.change_state("paused")
        self.stream.pass_time(self.draw(st.integers(0, 5_000_000)))
        self.stream.change_state("awake")

    def _fail(self) -> None:
        before = self.stream.num_steps
        self._step(is_failed=True)
        failed = [each for each in self._live() if self._of(each).is_running]
        assert self.stream.num_steps == before + 1
        for request_id in failed:
            self.stream.finish(request_id, "error")

    def _stop_string(self) -> None:
        """The API server ends a sequence at its last token while the core plans another."""
        running = [each for each in self._live() if self._of(each).is_running and self._of(each).num_output_tokens]
        for request_id in running[:1]:
            self.stream.end(request_id, "stop")
            self.stream.end_http(f"http-{request_id}")
            self._of(request_id).is_stopped = True
            self._step()
            self.stream.release(request_id, "stop")

    def _refuse(self) -> None:
        """The core does not take a sequence, and says so."""
        self.num_submitted += 1
        request_id = f"r-{self.num_submitted}"
        self.stream.submit(request_id, is_taken=False)
        self.stream.end(request_id, "error", taken_at=self.stream.pass_time(1000))
        self.stream.end_http(f"http-{request_id}", 400)

    def _live(self) -> list[str]:
        return [request_id for request_id, sequence in self.stream.sequences.items() if sequence.is_live]

    def _of(self, request_id: str) -> FactSequence:
        return self.stream.sequences[request_id]


@st.composite
def random_runs(draw: Any, max_actions: int = 50) -> FactStream:
    """The stream of a whole run."""
    return RandomRun(draw).run(draw(st.integers(3, max_actions)))


@st.composite
def interleaved(draw: Any, max_actions: int = 50) -> tuple[FactStream, list[tuple[Source, Record]]]:
    """A whole run and its facts in another order: each source's own is kept, but either may come late."""
    stream: FactStream = draw(random_runs(max_actions))
    engine, api = stream.of(stream.engine), stream.of(stream.api)
    mixed: list[tuple[Source, Record]] = []
    while engine and api:
        facts = draw(st.sampled_from((engine, api)))
        num_taken = draw(st.integers(1, 20))
        mixed += facts[:num_taken]
        del facts[:num_taken]
    return stream, mixed + engine + api
