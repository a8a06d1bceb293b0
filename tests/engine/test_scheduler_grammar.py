"""A sequence with a grammar waits beside the queue until that is compiled, and goes by it from then on."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from core_bench import Bench
from fake_executor import expected_output, make_request, tiny_config
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.request import Request
from vllm_obs.engine.scheduler_state import INTERNAL_ERROR
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import RequestTaken, StepPlanned


@dataclass
class FakeGrammar:
    """Allows `length` tokens, whichever; `error` is raised at the beginning, `refused` is a place it fails at."""

    is_ready: bool = False
    length: int = 100
    error: Exception | None = None
    refused: int = -1
    tokens: list[int] = field(default_factory=list)
    num_begun: int = 0

    @property
    def is_over(self) -> bool:
        return len(self.tokens) >= self.length

    def begin(self) -> None:
        self.num_begun += 1
        if self.error is not None:
            raise self.error

    def write_mask(self, words: npt.NDArray[np.int32], address: int) -> None:
        words[:] = -1

    def accept(self, token_id: int) -> None:
        if len(self.tokens) == self.refused:
            raise RequestFailedError("The output left its grammar.")
        self.tokens.append(token_id)


def add(driver: SchedulerDriver, request_id: str, grammar: FakeGrammar, **fields: int) -> Request:
    message = make_request(request_id, [1, 2, 3], sampling=SamplingSpec(max_tokens=8, **fields))
    request = driver.scheduler.add_request(message, grammar)
    driver.requests[request_id] = request
    return request


def test_one_whose_grammar_is_not_ready_holds_up_nobody_and_its_reason_is_told() -> None:
    driver, grammar = SchedulerDriver(), FakeGrammar()
    add(driver, "bound", grammar)
    driver.add("free", [1, 2, 3])
    scheduled = driver.launch()
    assert scheduled.plan.row_ids == ["free"]
    assert scheduled.decisions.grammar_ids == ["bound"]
    assert (scheduled.decisions.head_reason, driver.scheduler.num_waiting) == ("", 1)
    driver.answer()
    grammar.is_ready = True
    scheduled = driver.launch()
    assert scheduled.plan.row_ids == ["bound", "free"]
    assert (scheduled.decisions.grammar_ids, scheduled.constrained) == ([], [driver.requests["bound"]])


def test_there_is_no_work_while_all_that_live_wait_for_grammars() -> None:
    driver, grammar = SchedulerDriver(), FakeGrammar()
    add(driver, "bound", grammar)
    assert (driver.scheduler.has_work(), driver.scheduler.awaits_grammar) == (False, True)
    grammar.is_ready = True
    assert driver.scheduler.has_work()
    driver.launch()
    assert not driver.scheduler.awaits_grammar


def test_it_is_queued_at_the_rank_it_came_with() -> None:
    driver, grammar = SchedulerDriver(config=tiny_config(max_num_seqs=1)), FakeGrammar()
    driver.add("running", [1, 2])
    driver.launch()
    driver.answer()
    add(driver, "bound", grammar)
    driver.add("later", [1, 2])
    grammar.is_ready = True
    driver.launch()
    driver.answer()
    driver.abort("running")
    assert driver.launch().plan.row_ids == ["bound"]


def test_a_grammar_that_is_none_fails_its_sequence_alone() -> None:
    driver = SchedulerDriver()
    error = RequestError("The grammar cannot be used.", "structured_outputs", reason="unsupported")
    add(driver, "bound", FakeGrammar(is_ready=True, error=error))
    driver.add("free", [1, 2, 3])
    driver.launch()
    assert driver.ended["bound"].error == ("unsupported", "The grammar cannot be used.")
    assert driver.running_ids == ["free"]


def test_one_that_waits_for_its_grammar_can_be_aborted() -> None:
    driver = SchedulerDriver()
    add(driver, "bound", FakeGrammar())
    ended = driver.abort("bound")
    assert ended is not None
    assert ended.finish_reason == FinishReason.ABORT
    assert (driver.scheduler.num_live, driver.scheduler.awaits_grammar) == (0, False)


def bench_with(grammar: FakeGrammar, **fields: int | tuple[int, ...]) -> Bench:
    bench = Bench()
    sampling = SamplingSpec(max_tokens=8, **fields)  # type: ignore[arg-type]
    bench.core.scheduler.add_request(make_request("bound", [1, 2, 3], sampling=sampling), grammar)
    return bench


def test_the_grammar_knows_every_token_and_the_output_ends_where_it_does() -> None:
    grammar = FakeGrammar(is_ready=True, length=3)
    seen = bench_with(grammar).run()["bound"]
    assert (seen.token_ids, seen.finish_reason) == (grammar.tokens, FinishReason.STOP)
    assert (len(grammar.tokens), grammar.num_begun) == (3, 1)


def test_with_an_end_token_it_is_that_which_ends_the_output() -> None:
    grammar = FakeGrammar(is_ready=True, length=3)
    seen = bench_with(grammar, eos_token_ids=(999,)).run()["bound"]
    assert (len(seen.token_ids), seen.finish_reason) == (8, FinishReason.LENGTH)


def test_a_token_the_grammar_does_not_know_fails_the_sequence_and_is_not_sent() -> None:
    seen = bench_with(FakeGrammar(is_ready=True, refused=2)).run()["bound"]
    assert (len(seen.token_ids), seen.error) == (2, ("internal_error", "The output left its grammar."))


def test_one_whose_mask_cannot_be_made_fails_alone_and_its_token_is_not_sent() -> None:
    def broken(words: npt.NDArray[np.int32], address: int) -> None:
        raise RuntimeError("planted")

    grammar = FakeGrammar(is_ready=True)
    grammar.write_mask = broken  # type: ignore[method-assign]
    bench = bench_with(grammar, stop_token_ids=tuple(range(1000)))
    bench.add("free", [1, 2, 3], max_tokens=2)
    seen = bench.run()
    assert (seen["bound"].token_ids, seen["bound"].error) == ([], ("internal_error", INTERNAL_ERROR))
    assert seen["free"].token_ids == expected_output([1, 2, 3], 2)


def test_the_step_s_record_names_who_waits_for_a_grammar() -> None:
    bench = bench_with(FakeGrammar())
    bench.add("free", [1, 2, 3], max_tokens=1)
    bench.step()
    assert [planned.grammar_ids for planned in bench.recorder.of(StepPlanned)] == [["bound"]]  # type: ignore[attr-defined]


class Book(GrammarBook):
    """Hands out one grammar."""

    def __init__(self, grammar: FakeGrammar) -> None:
        super().__init__(tiny_config().model)
        self.grammar = grammar

    def order(self, grammar: str) -> FakeGrammar:
        return self.grammar


def test_the_record_of_a_sequence_says_whether_its_grammar_is_still_to_be_compiled() -> None:
    grammar = FakeGrammar()
    bench = Bench(grammars=Book(grammar))
    for request_id in ("waits", "ready"):
        bench.add(request_id, [1, 2, 3], sampling=SamplingSpec(max_tokens=2, grammar="any"))
        grammar.is_ready = True
    bench.add("free", [1, 2, 3])
    taken = {each.request_id: each.awaits_grammar for each in bench.recorder.of(RequestTaken)}  # type: ignore[attr-defined]
    assert taken == {"waits": True, "ready": False, "free": False}


def test_a_core_that_only_waits_for_grammars_says_so() -> None:
    grammar = FakeGrammar()
    bench = bench_with(grammar)
    assert (bench.core.has_work(), bench.core.resting) == (False, Activity.COMPILING_GRAMMAR)
    grammar.is_ready = True
    bench.run()
    assert bench.core.resting is Activity.WAITING
