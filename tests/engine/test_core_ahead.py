"""The engine core a step ahead: what is begun before an answer, what is wasted, what a failure takes with it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ahead_executor import AheadExecutor
from core_bench import PROMPT, Bench
from fake_executor import expected_output, make_request, next_token, tiny_config

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.failure_streak import MAX_FAILED_STEPS
from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.plan import StepPlan
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.records import RequestReleased, StepAnswered, StepFailed, StepPlanned


class AheadBench(Bench):
    """A core that begins a step before the one before it has answered."""

    executor: AheadExecutor

    def __init__(self, num_blocks: int = 32, grammars: GrammarBook | None = None, **fields: Any) -> None:
        super().__init__(num_blocks, tiny_config(async_scheduling=True, **fields), grammars)

    def rows(self) -> list[list[str]]:
        """Who was in each plan."""
        return [plan.row_ids for plan in self.executor.plans]


def test_a_step_is_begun_before_the_answer_of_the_one_before_is_asked_for() -> None:
    bench = AheadBench()
    bench.add("a", [1, 2, 3], max_tokens=4)
    seen = bench.run()
    assert bench.executor.calls == [
        *("execute 1", "sample 1"),
        *("execute 2", "sample 2", "answer 1"),
        *("execute 3", "sample 3", "answer 2"),
        *("execute 4", "sample 4", "answer 3"),
        "answer 4",
        "execute 5",
    ]
    assert seen["a"].token_ids == expected_output([1, 2, 3], 4)


def test_tokens_are_fed_back_unseen_and_nobody_counts_as_held_up_by_its_own_step() -> None:
    bench = AheadBench()
    for number, name in enumerate("abcd"):
        bench.add(name, [1, 2, 3 + number], max_tokens=3 + number)
    seen = bench.run()
    for number, name in enumerate("abcd"):
        assert seen[name].token_ids == expected_output([1, 2, 3 + number], 3 + number)
    decoded = [plan for plan in bench.executor.plans if plan.num_rows][1:]
    assert {token for plan in decoded for token in plan.running_last_token_ids} == {-1}
    assert all(record.left_out_ids == [] for record in bench.recorder.of(StepPlanned))
    assert bench.core.counters.num_wasted_rows == 0, "an ending by length is foreseen"


def test_a_prompts_chunks_are_begun_ahead_too() -> None:
    bench = AheadBench(max_num_batched_tokens=4)
    bench.add("a", PROMPT, max_tokens=2)
    bench.step()
    assert bench.executor.calls == ["execute 1", "sample 1", "execute 2", "sample 2", "answer 1"]
    assert bench.run()["a"].token_ids == expected_output(PROMPT, 2)


def stopping(prompt: list[int]) -> SamplingSpec:
    """Parameters under which the prompt's first token is the last."""
    return SamplingSpec(max_tokens=9, stop_token_ids=(next_token(prompt),))


def test_the_row_begun_after_a_stop_is_wasted_counted_and_seen_by_nobody() -> None:
    bench = AheadBench()
    bench.add("stops", [7, 8], sampling=stopping([7, 8]))
    bench.add("other", [1, 2, 3], max_tokens=5)
    seen = bench.run()
    assert (seen["stops"].token_ids, seen["stops"].finish_reason) == ([next_token([7, 8])], FinishReason.STOP)
    assert seen["other"].token_ids == expected_output([1, 2, 3], 5)
    answers = {record.step: record for record in bench.recorder.of(StepAnswered)}
    assert [answers[step].request_ids for step in (1, 2)] == [["stops", "other"], ["other"]]
    assert [record.num_wasted_rows for record in answers.values()] == [0, 1, 0, 0, 0]
    assert bench.core.counters.num_wasted_rows == 1
    outputs = {record.request_id: record.num_output_tokens for record in bench.recorder.of(RequestReleased)}
    assert outputs == {"stops": 1, "other": 5}


def test_an_abort_wastes_what_was_begun_and_keeps_its_blocks_until_that_has_answered() -> None:
    bench = AheadBench()
    for name in "ab":
        bench.add(name, [1, 2, 3], max_tokens=6)
    bench.step()
    bench.abort("a")
    assert bench.core.scheduler.kv_cache.pool.num_active == 2, "a plan under way still names its block"
    seen = bench.run()
    assert (len(seen["a"].token_ids), seen["a"].finish_reason) == (1, FinishReason.ABORT)
    assert seen["b"].token_ids == expected_output([1, 2, 3], 6)
    assert bench.core.counters.num_wasted_rows == 1


def test_the_id_of_an_aborted_sequence_may_be_used_again_at_once() -> None:
    bench = AheadBench()
    bench.add("a", [1, 2, 3], max_tokens=6)
    bench.step()
    bench.abort("a")
    bench.seen.clear()
    bench.add("a", [9, 8], max_tokens=3)
    for message in bench.core.step().values():
        assert message.finish_reasons == [FinishReason.ABORT]
    assert bench.run()["a"].token_ids == expected_output([9, 8], 3)


def fail_at(*steps: int) -> Any:
    def hook(plan: StepPlan) -> None:
        if plan.step in steps:
            raise RuntimeError("planted")

    return hook


def test_a_step_that_could_not_be_begun_fails_when_its_turn_comes_and_nothing_is_begun_behind_it() -> None:
    bench = AheadBench(max_num_seqs=2)
    bench.executor.before_execute = fail_at(3)
    for name in ("a", "b", "later"):
        bench.add(name, [1, 2, 3], max_tokens=4)
    seen = bench.run()
    assert [len(seen[name].token_ids) for name in "ab"] == [2, 2]
    assert {seen[name].finish_reason for name in "ab"} == {FinishReason.ERROR}
    assert seen["later"].token_ids == expected_output([1, 2, 3], 4)
    (failed,) = bench.recorder.of(StepFailed)
    assert (failed.step, failed.request_ids) == (3, ["a", "b"])
    assert bench.rows()[3] == ["later"]


def test_an_answer_that_cannot_be_had_takes_the_step_begun_behind_it_with_it() -> None:
    bench = AheadBench()

    def lose(step: int) -> None:
        if step == 2:
            raise RuntimeError("planted")

    bench.executor.before_answer = lose
    bench.add("a", [1, 2, 3], max_tokens=6)
    bench.step()
    bench.add("later", [4, 5], max_tokens=3)
    seen = bench.run()
    assert (len(seen["a"].token_ids), seen["a"].finish_reason) == (1, FinishReason.ERROR)
    assert seen["later"].finish_reason == FinishReason.ERROR, "it was in the step behind"
    assert [record.step for record in bench.recorder.of(StepFailed)] == [2, 3]
    assert bench.core.counters.num_failed_steps == 1
    bench.add("next", [4, 5], max_tokens=3)
    assert bench.run()["next"].token_ids == expected_output([4, 5], 3)


def test_a_row_without_numbers_fails_alone_though_another_step_runs_it_already() -> None:
    bench = AheadBench()
    bench.executor.failing.add("bad")
    bench.add("bad", PROMPT)
    bench.add("good", [1, 2], max_tokens=4)
    seen = bench.run()
    assert seen["bad"].error == ("invalid_logits", "The logits are not numbers.")
    assert seen["bad"].token_ids == []
    assert seen["good"].token_ids == expected_output([1, 2], 4)
    assert bench.core.counters.num_wasted_rows == 1


def test_one_that_cannot_be_sampled_counts_as_one_failed_step() -> None:
    bench = AheadBench()
    bench.executor.failure = ("internal_error", "The request failed inside the engine.")
    bench.executor.failing = {f"r{number}" for number in range(MAX_FAILED_STEPS)}
    for number in range(MAX_FAILED_STEPS - 1):
        bench.add(f"r{number}", [number, *PROMPT])
        assert bench.run()[f"r{number}"].error == bench.executor.failure
    bench.add("good", PROMPT, max_tokens=2)
    assert bench.run()["good"].token_ids == expected_output(PROMPT, 2)


def test_who_ran_on_poisoned_blocks_is_computed_anew_though_another_step_runs_it_already() -> None:
    bench = AheadBench(max_num_batched_tokens=32)
    bench.add("bad", PROMPT, max_tokens=30)
    bench.step()
    bench.step()
    bench.add("sharer", [*PROMPT, 1], max_tokens=4)
    bench.step()
    bench.executor.failing |= {"bad", "sharer"}
    bench.step()
    bench.step()
    bench.executor.failing.clear()
    seen = bench.run()
    assert seen["bad"].error == ("invalid_logits", "The logits are not numbers.")
    assert seen["sharer"].token_ids == expected_output([*PROMPT, 1], 4)


def test_a_pause_lets_what_was_begun_come_to_its_end() -> None:
    bench = AheadBench()
    bench.add("a", [1, 2, 3], max_tokens=5)
    bench.step()
    bench.core.call_utility("pause_scheduler", ["keep"])
    while bench.core.has_work():
        bench.step()
    assert (len(bench.seen["a"].token_ids), bench.core.scheduler.num_in_flight) == (2, 0)
    bench.core.call_utility("resume_scheduler", [])
    assert bench.run()["a"].token_ids == expected_output([1, 2, 3], 5)


@dataclass
class CountingGrammar:
    """Allows any token; each mask must be made when all tokens before it were accepted."""

    masked_at: list[int] = field(default_factory=list)
    num_accepted: int = 0
    refused: int = -1
    is_ready = True
    is_over = False

    def begin(self) -> None:
        pass

    def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
        self.masked_at.append(self.num_accepted)
        words[:] = -1

    def accept(self, token_id: int) -> None:
        if self.num_accepted == self.refused:
            raise RequestFailedError("The output left its grammar.")
        self.num_accepted += 1


class Book(GrammarBook):
    """Hands out one grammar."""

    def __init__(self, model: ModelConfig, grammar: CountingGrammar) -> None:
        super().__init__(model)
        self.grammar = grammar

    def order(self, grammar: str) -> CountingGrammar:
        return self.grammar


def constrained_bench(grammar: CountingGrammar) -> AheadBench:
    bench = AheadBench(grammars=Book(tiny_config().model, grammar))
    bench.add("bound", [1, 2, 3], sampling=SamplingSpec(max_tokens=4, grammar="any"))
    bench.add("free", [4, 5], max_tokens=6)
    return bench


def test_a_step_with_a_grammar_computes_ahead_and_is_sampled_when_the_answer_before_it_is_known() -> None:
    grammar = CountingGrammar()
    bench = constrained_bench(grammar)
    seen = bench.run()
    assert seen["bound"].token_ids == expected_output([1, 2, 3], 4)
    assert seen["free"].token_ids == expected_output([4, 5], 6)
    assert grammar.masked_at == [0, 1, 2, 3]
    assert bench.executor.calls[:8] == [
        *("execute 1", "sample 1"),
        *("execute 2", "answer 1", "sample 2"),
        *("execute 3", "answer 2", "sample 3"),
    ]
    assert "execute 6 sample 6 answer 5" in " ".join(bench.executor.calls), "nobody is bound any more"


def test_who_leaves_its_grammar_has_a_row_in_the_next_step_for_nothing() -> None:
    grammar = CountingGrammar(refused=1)
    bench = constrained_bench(grammar)
    seen = bench.run()
    assert (len(seen["bound"].token_ids), seen["bound"].finish_reason) == (1, FinishReason.ERROR)
    assert seen["free"].token_ids == expected_output([4, 5], 6)
    assert grammar.masked_at == [0, 1]
    assert bench.core.counters.num_wasted_rows == 1


def test_an_abort_of_who_has_a_grammar_between_two_steps() -> None:
    bench = constrained_bench(CountingGrammar())
    bench.step()
    bench.abort("bound")
    seen = bench.run()
    assert seen["bound"].finish_reason == FinishReason.ABORT
    assert seen["free"].token_ids == expected_output([4, 5], 6)


def test_masks_that_cannot_be_made_in_the_held_step_fail_their_row_alone() -> None:
    class Breaking(CountingGrammar):
        def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
            super().write_mask(words, address)
            if self.num_accepted == 2:
                raise RuntimeError("planted")

    bench = constrained_bench(Breaking())
    seen = bench.run()
    assert (len(seen["bound"].token_ids), seen["bound"].finish_reason) == (2, FinishReason.ERROR)
    assert seen["free"].token_ids == expected_output([4, 5], 6)
    assert bench.core.counters.num_failed_steps == 0


@pytest.mark.parametrize("seed", range(16))
def test_random_arrivals_and_aborts_over_a_small_cache(seed: int) -> None:
    draw = Random(seed)
    bench = AheadBench(
        num_blocks=draw.randint(8, 20),
        max_model_len=24,
        block_size=2,
        max_num_seqs=draw.randint(1, 6),
        max_num_batched_tokens=draw.randint(1, 8),
        policy=draw.choice(["fcfs", "priority"]),
    )
    asked: dict[str, tuple[list[int], int]] = {}
    for _ in range(150):
        if draw.random() < 0.3:
            name = f"r{len(asked)}"
            asked[name] = ([draw.randint(0, 2) for _ in range(draw.randint(1, 9))], draw.randint(1, 7))
            bench.core.add_request(make_request(name, *asked[name], priority=draw.randint(0, 2)))
        if asked and draw.random() < 0.05:
            bench.abort(draw.choice(list(asked)))
        if bench.core.has_work():
            bench.step()
            bench.core.scheduler.check()
            assert bench.core.scheduler.num_in_flight <= 1
    seen = bench.run(2000)
    for name, one in seen.items():
        prompt, max_tokens = asked[name]
        assert one.token_ids == expected_output(prompt, len(one.token_ids))
        assert one.finish_reason == FinishReason.ABORT or len(one.token_ids) == max_tokens
    assert set(seen) == set(asked)
