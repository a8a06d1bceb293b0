"""Rows in, deltas out: texts, stops, log-probabilities, and exactly one ending a sequence."""

import random
from typing import Any

import numpy as np
import pytest
from default_model import default_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from step_outputs import Row, logprobs, step_outputs

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.open_sequence import AT_THE_END, SequenceRequest
from vllm_obs.engine.frontend.output_processor import NUM_STEPS_TO_BEGIN, OutputProcessor
from vllm_obs.engine.frontend.outputs import SequenceDelta, SequenceTiming, TokenLogprob
from vllm_obs.engine.messages import Detours, FinishReason
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import OutputsTaken, RequestEnded

STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


class Desk:
    """An OutputProcessor with everything that came out of it."""

    def __init__(self) -> None:
        self.recorder = MemoryRecorder()
        self.processor = OutputProcessor(default_tokenizer(), self.recorder, clock=lambda: 99)
        self.deltas: list[SequenceDelta] = []
        self.stopped: list[str] = []
        self.failed: list[str] = []

    def register(self, request_id: str = "r-0", index: int = 0, interval: int = 1, **params: Any) -> None:
        prompt = params.pop("prompt", [504, 3575])
        request = SequenceRequest(
            request_id, index, prompt, SamplingParams(**params), self.deltas.append, interval, 2
        )
        self.processor.register(request)

    def say(self, *rows: Row, sampled_at: int = 5) -> None:
        aborts = self.processor.process(step_outputs(*rows, sampled_at=sampled_at))
        self.stopped += aborts.stopped
        self.failed += aborts.failed

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @property
    def endings(self) -> list[tuple[str, str]]:
        return [(e.request_id, e.finish_reason) for e in self.recorder.records if isinstance(e, RequestEnded)]

    def say_text(self, text: str, finish_reason: int = LENGTH) -> None:
        """One token a step, the last with the ending; stops when the sequence has ended."""
        ids = default_tokenizer().encode(text)
        for position, token_id in enumerate(ids):
            last = position == len(ids) - 1
            self.say(Row("r-0", [token_id], finish_reason if last else -1))
            if not self.processor.num_open:
                return


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_each_step_gives_a_delta_and_the_first_brings_the_prompt(desk: Desk) -> None:
    desk.register()
    desk.say(Row("r-0", [19556], num_cached_tokens=1, timing=(3, 4)))
    desk.say(Row("r-0", [905], LENGTH), sampled_at=9)
    first, last = desk.deltas
    assert first == SequenceDelta(
        "r-0",
        0,
        "Hello",
        [19556],
        prompt_token_ids=[504, 3575],
        num_prompt_tokens=2,
        num_cached_tokens=1,
        num_output_tokens=1,
    )
    assert last == SequenceDelta(
        "r-0",
        0,
        " world",
        [905],
        finish_reason="length",
        num_prompt_tokens=2,
        num_cached_tokens=1,
        num_output_tokens=2,
        timing=SequenceTiming(3, 4, 5, 9, tokenized_at=2, returned_at=99, ended_at=99),
    )


def test_the_ending_is_recorded_once_with_its_moments(desk: Desk) -> None:
    desk.register()
    desk.say(Row("r-0", [19556]), sampled_at=10)
    desk.say(Row("r-0", [905], LENGTH), sampled_at=20)
    desk.say(Row("r-0", [], ABORT))
    assert desk.recorder.of(RequestEnded) == [RequestEnded("r-0", 0, "length", "", 2, 2, 0, 10, 20, 99, 99)]
    assert desk.processor.num_open == 0


def test_what_the_core_says_of_detours_last_is_told_with_the_ending(desk: Desk) -> None:
    desk.register()
    desk.say(Row("r-0", [19556], timing=(3, 4)))
    desk.say(Row("r-0", [905], detours=Detours(1, 2, 3, 1)))
    desk.say(Row("r-0", [905], detours=Detours(5, 2, 3, 1)))
    desk.say(Row("r-0", [905], LENGTH))
    (timing,) = [delta.timing for delta in desk.deltas if delta.timing is not None]
    assert timing.detours == Detours(5, 2, 3, 1)


def test_the_token_that_stops_is_left_out_and_the_last_one_of_a_grammar_is_not(desk: Desk) -> None:
    desk.register("r-0", stop_token_ids=[905])
    desk.say(Row("r-0", [19556]), Row("r-0", [905], STOP, stop_token_id=905))
    desk.register("s-0", ignore_eos=True)
    desk.say(Row("s-0", [19556]), Row("s-0", [905], STOP))
    assert desk.text == "Hello" + "Hello world"


def test_one_who_cannot_be_told_anything_ends_and_the_others_go_on(desk: Desk) -> None:
    def deaf(delta: SequenceDelta) -> None:
        raise RuntimeError("planted")

    desk.processor.register(SequenceRequest("deaf-0", 0, [504], SamplingParams(), deaf))
    desk.register()
    desk.say(Row("deaf-0", [19556]), Row("r-0", [19556], LENGTH))
    assert (desk.text, desk.failed, desk.processor.num_open) == ("Hello", ["deaf-0"], 0)
    assert desk.endings == [("deaf-0", "error"), ("r-0", "length")]


def waiting(desk: Desk, max_num_seqs: int = 8) -> list[str]:
    """Those that cannot have been running when the engine died."""
    ids = ["old", "runs", "begun", "new", "first", "second", "ghost"]
    return [one.request_id for one in desk.processor.open_requests(max_num_seqs, ids) if not one.may_run]


def test_one_that_steps_have_passed_over_waits_and_one_that_was_just_sent_may_run(desk: Desk) -> None:
    desk.register("old")
    for _ in range(NUM_STEPS_TO_BEGIN):
        desk.register("runs")
        desk.say(Row("runs", [19556]))
    desk.register("begun")
    desk.processor.process(step_outputs()._replace(scheduled_ids=["begun", "ghost"]))
    desk.register("new")
    assert waiting(desk) == []
    for _ in range(NUM_STEPS_TO_BEGIN):
        desk.say(Row("runs", [905]))
    assert waiting(desk) == ["old"]
    desk.say(Row("runs", [905]))
    assert waiting(desk) == ["old", "new"]


def test_while_as_many_run_as_can_the_others_wait(desk: Desk) -> None:
    desk.register("first")
    desk.register("second")
    desk.say(Row("first", [19556]))
    assert waiting(desk, max_num_seqs=2) == []
    assert waiting(desk, max_num_seqs=1) == ["second"]


def test_sequences_are_taken_on_all_or_none(desk: Desk) -> None:
    good = SequenceRequest("r-0", 0, [504], SamplingParams(), desk.deltas.append)
    with pytest.raises(AttributeError):
        desk.processor.register(good, None)  # type: ignore[arg-type]
    assert desk.processor.num_open == 0


def test_a_row_nobody_waits_for_is_counted(desk: Desk) -> None:
    desk.say(Row("ghost", [5]))
    assert (desk.processor.num_unknown_rows, desk.deltas, desk.endings) == (1, [], [])
    assert desk.recorder.of(OutputsTaken) == [OutputsTaken(0, 0, 0, 5, 5, 99, 99, 1)]


def test_end_of_sequence_has_no_stop_reason_and_no_text(desk: Desk) -> None:
    desk.register(skip_special_tokens=False)
    desk.say(Row("r-0", [19556]))
    desk.say(Row("r-0", [2], STOP))
    assert desk.text == "Hello"
    assert desk.token_ids == [19556, 2]
    assert (desk.deltas[-1].finish_reason, desk.deltas[-1].stop_reason) == ("stop", None)


@pytest.mark.parametrize(("include", "text"), [(False, "Hello"), (True, "Hello world")])
def test_a_stop_token_is_named_and_shown_only_if_asked(desk: Desk, include: bool, text: str) -> None:
    desk.register(stop_token_ids=[905], include_stop_str_in_output=include)
    desk.say(Row("r-0", [19556]))
    desk.say(Row("r-0", [905], STOP, stop_token_id=905))
    assert (desk.text, desk.deltas[-1].stop_reason) == (text, 905)
    assert desk.deltas[-1].num_output_tokens == 2
    assert desk.stopped == []


@pytest.mark.parametrize(("include", "text"), [(False, "ABC "), (True, "ABC DE")])
def test_a_stop_string_inside_a_token_cuts_there_and_aborts_the_core(desk: Desk, include: bool, text: str) -> None:
    desk.register(stop="DE", include_stop_str_in_output=include)
    desk.say_text("ABC DEFGHIJ xyz")
    assert (desk.text, desk.deltas[-1].finish_reason, desk.deltas[-1].stop_reason) == (text, "stop", "DE")
    assert desk.stopped == ["r-0"]
    assert desk.endings == [("r-0", "stop")]


def test_a_stop_string_in_the_last_token_needs_no_abort(desk: Desk) -> None:
    desk.register(stop=" world")
    desk.say(Row("r-0", [19556]))
    desk.say(Row("r-0", [905], LENGTH))
    assert (desk.text, desk.deltas[-1].finish_reason, desk.deltas[-1].stop_reason) == ("Hello", "stop", " world")
    assert desk.stopped == []


def test_tokens_after_a_stop_string_in_the_same_step_are_dropped(desk: Desk) -> None:
    desk.register(stop=" world", logprobs=0)
    row = Row("r-0", [19556, 905, 17, 17], logprobs=logprobs(*[[(t, -1.0)] for t in (19556, 905, 17, 17)]))
    desk.say(row)
    assert desk.token_ids == [19556, 905]
    assert [entry.token_id for entry in desk.deltas[0].logprobs or []] == [19556, 905]
    assert desk.deltas[0].num_output_tokens == 2


def test_stop_strings_wait_for_min_tokens(desk: Desk) -> None:
    desk.register(stop=" ", min_tokens=3)
    desk.say_text("a b c d e f")
    assert desk.text == "a b c"
    assert desk.deltas[-1].num_output_tokens == 4


def test_an_unfinished_stop_string_is_shown_at_the_end(desk: Desk) -> None:
    desk.register(stop="worlds")
    desk.say_text("Hello world")
    assert [delta.text for delta in desk.deltas] == ["Hello", " world"]
    desk = Desk()
    desk.register(stop="worlds")
    desk.say(Row("r-0", default_tokenizer().encode("Hello world")))
    assert desk.text == "Hello "


def test_half_a_character_at_the_end_is_one_replacement_character(desk: Desk) -> None:
    desk.register()
    for token_id in (10813, 230):
        desk.say(Row("r-0", [token_id], LENGTH if token_id == 230 else -1))
    assert [delta.text for delta in desk.deltas] == ["", "\ufffd"]


def test_without_detokenize_there_are_tokens_only(desk: Desk) -> None:
    desk.register(detokenize=False)
    desk.say_text("Hello world")
    assert (desk.text, desk.token_ids) == ("", [19556, 905])


def test_scoring_hides_the_token_the_core_made(desk: Desk) -> None:
    desk.register(max_tokens=0, prompt_logprobs=1)
    desk.say(Row("r-0", [2], STOP, prompt_logprobs=logprobs([(3575, -2.5), (29, -1.0)], rank=7)))
    (delta,) = desk.deltas
    assert (delta.text, delta.token_ids, delta.num_output_tokens) == ("", [], 0)
    assert delta.finish_reason == "length"
    assert delta.prompt_logprobs == [None, TokenLogprob(3575, -2.5, 7, [(29, -1.0, 1)])]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_the_only_token_of_a_prompt_has_its_place_among_the_prompt_s_logprobs(desk: Desk, max_tokens: int) -> None:
    desk.register(prompt=[504], max_tokens=max_tokens, prompt_logprobs=1)
    desk.say(Row("r-0", [19556], LENGTH))  # the core has none to tell
    (delta,) = desk.deltas
    assert (delta.prompt_token_ids, delta.prompt_logprobs) == ([504], [None])


def test_logprobs_are_finite_and_ranked(desk: Desk) -> None:
    desk.register(logprobs=2)
    desk.say(Row("r-0", [905], logprobs=logprobs([(905, -np.inf), (19556, -0.5), (17, -np.inf)], rank=40000)))
    assert desk.deltas[0].logprobs == [TokenLogprob(905, -9999.0, 40000, [(19556, -0.5, 1), (17, -9999.0, 2)])]


def test_with_an_interval_the_first_token_comes_at_once_then_every_nth(desk: Desk) -> None:
    desk.register(interval=3)
    for position in range(8):
        desk.say(Row("r-0", [19556], LENGTH if position == 7 else -1))
    assert [len(delta.token_ids) for delta in desk.deltas] == [1, 3, 3, 1]
    assert desk.text == "Hello" * 8


def test_at_the_end_there_is_one_delta_with_everything(desk: Desk) -> None:
    desk.register(interval=AT_THE_END, logprobs=0, prompt_logprobs=0)
    desk.say(Row("r-0", [19556], logprobs=logprobs([(19556, -1.0)]), prompt_logprobs=logprobs([(3575, -2.0)])))
    desk.say(Row("r-0", [905], LENGTH, logprobs=logprobs([(905, -3.0)])))
    (delta,) = desk.deltas
    assert (delta.text, delta.token_ids, delta.prompt_token_ids) == ("Hello world", [19556, 905], [504, 3575])
    assert [entry.logprob for entry in delta.logprobs or []] == [-1.0, -3.0]
    assert delta.prompt_logprobs == [None, TokenLogprob(3575, -2.0, 1, [])]


def test_an_error_of_the_core_ends_its_sequence_only(desk: Desk) -> None:
    desk.register("r-0")
    desk.register("s-0")
    desk.say(Row("r-0", [], ERROR, error=("invalid_logits", "not finite")), Row("s-0", [19556]))
    failed, fine = desk.deltas
    assert failed.finish_reason == "error"
    assert isinstance(failed.error, RequestFailedError)
    assert (failed.error.reason, str(failed.error)) == ("invalid_logits", "not finite")
    assert (fine.request_id, fine.text) == ("s-0", "Hello")
    (ending,) = desk.recorder.of(RequestEnded)
    assert isinstance(ending, RequestEnded)
    assert (ending.finish_reason, ending.error) == ("error", "invalid_logits")


def test_a_failing_detokenizer_fails_its_sequence_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.engine.faults._FAULTS", {"detokenizer": ("raise", "r-0")})
    desk.register("r-0")
    desk.register("s-0")
    desk.say(Row("r-0", [19556]), Row("s-0", [19556]))
    desk.say(Row("r-0", [905]), Row("s-0", [905], LENGTH))
    assert desk.failed == ["r-0"]
    assert desk.endings == [("r-0", "error"), ("s-0", "length")]
    assert [(d.request_id, d.text, d.finish_reason) for d in desk.deltas] == [
        ("r-0", "", "error"),
        ("s-0", "Hello", None),
        ("s-0", " world", "length"),
    ]
    assert desk.deltas[0].error is not None
    assert desk.deltas[0].error.reason == "internal_error"


def test_ending_from_outside_happens_once(desk: Desk) -> None:
    desk.register("r-0")
    desk.register("r-1", index=1)
    desk.say(Row("r-1", [905], LENGTH))
    assert desk.processor.end(["r-0", "r-1", "ghost"], ABORT) == ["r-0"]
    assert desk.processor.end(["r-0", "r-1"], ABORT) == []
    assert desk.endings == [("r-1", "length"), ("r-0", "abort")]


def test_the_death_of_the_engine_tells_every_open_sequence(desk: Desk) -> None:
    for index in range(3):
        desk.register(f"r-{index}", index)
    desk.processor.end_all(ERROR, RequestFailedError("gone", "engine_dead"))
    assert [(d.finish_reason, d.error and d.error.reason) for d in desk.deltas] == [("error", "engine_dead")] * 3
    assert desk.processor.num_open == 0


@given(
    st.text("ab cé🌶<", max_size=20),
    st.lists(st.text("ab cé🌶<", min_size=1, max_size=3), max_size=2),
    st.lists(st.integers(1, 4), max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_the_text_does_not_depend_on_how_tokens_come(text: str, stops: list[str], sizes: list[int]) -> None:
    ids = default_tokenizer().encode(text)
    if not ids:
        return
    texts = set()
    for steps in (sizes, [1] * len(ids), [len(ids)]):
        desk, left = Desk(), list(ids)
        desk.register(stop=stops)
        for size in [*steps, len(ids)]:
            step, left = left[:size], left[size:]
            if step and desk.processor.num_open:
                desk.say(Row("r-0", step, -1 if left else LENGTH))
        assert desk.processor.num_open == 0
        texts.add((desk.text, desk.deltas[-1].stop_reason))
    assert len(texts) == 1


PLAIN_CASES: tuple[dict[str, Any], ...] = (
    {},
    {"interval": 3},
    {"interval": AT_THE_END},
    {"stop": ["o w", "🌶"]},
    {"stop": ["l"], "min_tokens": 3, "include_stop_str_in_output": True},
    {"detokenize": False},
    {"skip_special_tokens": False},
    {"max_tokens": 0},
)


@pytest.mark.parametrize("wish", PLAIN_CASES)
def test_a_row_with_nothing_but_a_token_is_taken_as_any_other(wish: dict[str, Any]) -> None:
    """A timing of zeros says nothing, and a row that has one is read in full."""
    ids = default_tokenizer().encode("Hello world 🌶🔥 hello <|im_end|> low world")
    told: list[Any] = []
    for timing in (None, (0, 0)):
        desk = Desk()
        desk.register(**wish)
        for number, token_id in enumerate(ids):
            desk.say(Row("r-0", [token_id], num_cached_tokens=number % 2, timing=timing), sampled_at=5 + number)
        desk.say(Row("r-0", [ids[0]], LENGTH, timing=timing), sampled_at=90)
        told.append((desk.deltas, desk.stopped, desk.endings, desk.recorder.records))
    assert told[0] == told[1]


class Texts:
    """Takes texts while `is_willing`."""

    def __init__(self) -> None:
        self.is_willing = True
        self.taken: list[tuple[int, str]] = []

    def __call__(self, index: int, text: str) -> bool:
        if self.is_willing:
            self.taken.append((index, text))
        return self.is_willing


def register_with(desk: Desk, texts: Texts, interval: int = 1, **params: Any) -> None:
    request = SequenceRequest(
        "r-0", 3, [504, 3575], SamplingParams(**params), desk.deltas.append, interval, 2, texts
    )
    desk.processor.register(request)


def test_a_token_that_is_only_a_text_is_offered_as_one_and_the_others_come_as_deltas(desk: Desk) -> None:
    texts = Texts()
    register_with(desk, texts)
    desk.say(Row("r-0", [19556]), sampled_at=10)
    desk.say(Row("r-0", [905]), sampled_at=20)
    texts.is_willing = False
    desk.say(Row("r-0", [19556]), sampled_at=30)
    texts.is_willing = True
    desk.say(Row("r-0", [905]), sampled_at=40)
    desk.say(Row("r-0", [19556], LENGTH), sampled_at=50)
    assert texts.taken == [(3, " world"), (3, " world")]
    assert [(delta.text, delta.token_ids, delta.num_output_tokens) for delta in desk.deltas] == [
        ("Hello", [19556], 1),
        ("Hello", [19556], 3),
        ("Hello", [19556], 5),
    ]
    timing = desk.deltas[-1].timing
    assert timing is not None
    assert (timing.first_token_at, timing.last_token_at) == (10, 50)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_texts_and_deltas_together_are_the_text(desk: Desk, share: float) -> None:
    rng, parts = random.Random(3), list[str]()

    def take(index: int, text: str) -> bool:
        is_taken = rng.random() < share
        if is_taken:
            parts.append(text)
        return is_taken

    text = "Été 日本語 🙂 plain words, again " * 5
    ids = default_tokenizer().encode(text)
    request = SequenceRequest("r-0", 0, [504], SamplingParams(), lambda delta: parts.append(delta.text))
    desk.processor.register(request._replace(text_sink=take))
    for token_id in ids:
        desk.say(Row("r-0", [token_id]))
    assert "".join(parts) == text


@pytest.mark.parametrize(
    "params", [{"stop": ["x"]}, {"detokenize": False}, {"interval": 2}, {"max_tokens": 0}], ids=str
)
def test_no_text_is_offered_where_more_than_it_may_matter(desk: Desk, params: dict[str, Any]) -> None:
    texts = Texts()
    register_with(desk, texts, **params)
    for _ in range(4):
        desk.say(Row("r-0", [19556]))
    assert texts.taken == []


def test_rows_of_every_kind_may_come_together(desk: Desk) -> None:
    for name in ("a", "b", "c", "d"):
        desk.register(name)
        desk.say(Row(name, [19556]))
    desk.deltas.clear()
    desk.say(Row("b", [905]), Row("a", [], ABORT), Row("c", [905, 19556]), Row("d", [905], LENGTH), Row("e", [1]))
    assert [(delta.request_id, delta.text, delta.finish_reason) for delta in desk.deltas] == [
        ("b", " world", None),
        ("a", "", "abort"),
        ("c", " worldHello", None),
        ("d", " world", "length"),
    ]
    assert desk.processor.num_unknown_rows == 1
