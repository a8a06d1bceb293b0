"""The run's state tells what lives, what was, and by whom, and holds no more than it may."""

import pytest
from fact_stream import API_SERVER, ENGINE, FactStream
from recording_view import RecordingView

from vllm_obs.telemetry.block_view import BlockLevels
from vllm_obs.telemetry.inspect_blocks import block_list
from vllm_obs.telemetry.inspect_requests import one_request
from vllm_obs.telemetry.records import (
    HttpRequestEnded,
    LoopSampled,
    OutputsTaken,
    ProcessStarted,
    Record,
    RequestKeyframe,
    TelemetrySet,
    WorkerStep,
)
from vllm_obs.telemetry.run_state import MAX_API_SERVERS, MAX_HTTP_REQUESTS, MAX_ROLES, RunState
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, RecordsLost, Source, SourceGone

WORKER = Source("Worker_TP1", 300, 3000, "0")


def run_of(facts: list[tuple[Source, Record]]) -> tuple[RunState, RecordingView]:
    state, view = RunState(), RecordingView()
    state.add_view(view)
    for source, record in facts:
        state.apply(source, record)
    return state, view


def test_a_sequence_is_found_by_its_id_its_request_and_its_clients_label() -> None:
    stream = FactStream()
    for index in range(3):
        stream.submit(f"r-{index}", external_id="mine")
    stream.finish("r-1")
    state, _ = run_of(stream.facts)
    assert [ledger.request_id for ledger in state.find("r-1")] == ["r-1"]
    assert [ledger.request_id for ledger in state.find("http-r-2")] == ["r-2"]
    assert [ledger.request_id for ledger in state.find("mine")] == ["r-2", "r-1", "r-0"]
    assert state.find("nobody") == []


@pytest.mark.parametrize(
    "name", ["r-1-0", "r-1", "chatcmpl-http-r-1-0", "resp_http-r-1-0", "cmpl-cmpl-mine", "cmpl-mine"]
)
def test_a_sequence_is_found_by_its_stem_and_by_the_id_of_its_reply(name: str) -> None:
    stream = FactStream()
    stream.submit("r-1-0", external_id="cmpl-mine")
    stream.submit("other-0", external_id="mine")
    state, _ = run_of(stream.facts)
    assert [ledger.request_id for ledger in state.find(name)] == ["r-1-0"]
    assert state.find("cmpl-") == state.find("r") == state.find("") == state.find("chatcmpl-nobody") == []


def test_all_of_a_trace_is_found_by_its_id() -> None:
    stream, trace = FactStream(), "4bf92f3577b34da6a3ce929d0e0e4736"
    for name in ("r-1", "r-2"):
        stream.submit(name, trace_parent=f"00-{trace}-00f067aa0ba902b7-01")
    stream.submit("r-3")
    stream.end_http("http-refused", 400, trace_parent=f"00-{trace}-00f067aa0ba902b8-01")
    state, _ = run_of(stream.facts)
    assert [ledger.request_id for ledger in state.find(trace)] == ["r-2", "r-1"]
    assert [ended.http_id for ended in state.find_http(trace)] == ["http-refused"]
    assert state.find(trace[:31]) == state.find("") == state.find_http("") == []


def test_levels_are_true_whether_or_not_the_engine_works() -> None:
    stream = FactStream()
    stream.describe()
    for index in range(3):
        stream.submit(f"r-{index}")
    stream.step(["r-0", "r-1"])
    state, _ = run_of(stream.facts)
    engine = state.engines["0"]
    assert (engine.num_running, engine.num_waiting, tuple(engine.blocks.levels)) == (2, 1, stream.blocks.levels)
    for request_id in ("r-0", "r-1", "r-2"):
        for fact in stream.abort(request_id):
            state.apply(*fact)
    assert (engine.num_running, engine.num_waiting, tuple(engine.blocks.levels)) == (0, 0, (0, 4, 60))


def test_a_live_sequence_shows_where_its_time_goes_now() -> None:
    stream = FactStream()
    stream.describe()
    for index in range(3):
        stream.submit(f"r-{index}")
    stream.step(["r-0"], head_reason="kv_blocks")
    stream.step(["r-0"], head_reason="max_num_seqs")
    state, _ = run_of(stream.facts)
    behind = state.sequences["r-2"]
    now = stream.pass_time(500)
    assert [(each.stage, each.reason) for each in state.intervals(behind, now)][-3:] == [
        ("queue", "step_in_progress"),
        ("queue", "head_of_line"),
        ("queue", "max_num_seqs"),
    ]
    assert state.intervals(behind, now)[-1].ended_at == now
    assert sum(each.num_ns for each in state.intervals(behind, now)) == now - behind.submitted.received_at
    assert (behind.state, state.sequences["r-0"].state) == ("waiting", "running")


def test_a_step_closes_when_every_rank_has_told_its_part() -> None:
    stream = FactStream()
    stream.describe(world_size=2)
    stream.submit()
    stream.step(["r-0"])
    state, view = run_of(stream.facts)
    assert view.steps == []
    part = next(record for record in stream.records if isinstance(record, WorkerStep))
    state.apply(WORKER, part._replace(rank=1))
    (step,) = view.steps
    assert [worker.rank for worker in step.workers] == [0, 1]
    assert state.engines["0"].steps.get(1) is step
    outputs = [record for record in stream.records if isinstance(record, OutputsTaken)]
    assert (step.outputs, step.answered is not None, step.is_closed) == (outputs, True, True)


def test_a_rank_that_tells_nothing_is_not_waited_for_forever() -> None:
    stream = FactStream()
    stream.describe(world_size=2)
    stream.submit()
    stream.step(["r-0"])
    state, view = run_of(stream.facts)
    state.tick(stream.now + 10**9)
    assert view.steps == []
    state.tick(stream.now + 3 * 10**9)
    assert [len(step.workers) for step in view.steps] == [1]


def test_what_other_processes_tell_of_a_step_before_the_core_does_is_kept() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    early = [fact for fact in stream.facts if isinstance(fact[1], WorkerStep | OutputsTaken)]
    rest = [fact for fact in stream.facts if fact not in early]
    _, view = run_of(rest[:2] + early + rest[2:])
    (step,) = view.steps
    assert (step.workers, step.outputs) == ([early[0][1]], [early[1][1]])


def test_steps_without_rows_and_steps_that_fail_close_at_once() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step()
    stream.step(["r-0"], is_failed=True)
    _, view = run_of(stream.facts)
    assert [(step.step, step.answered, step.failed is not None) for step in view.steps] == [
        (1, None, False),
        (2, None, True),
    ]


def test_a_step_that_an_engine_died_in_closes_with_it() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"], is_answered=False)
    state, view = run_of(stream.facts)
    state.apply(ENGINE, SourceGone())
    assert [(step.step, step.is_over) for step in view.steps] == [(1, False)]
    assert state.past_engines[0].is_gone


def test_two_engines_are_told_apart() -> None:
    first = FactStream()
    second = FactStream(engine=Source("EngineCore_DP1", 201, 2001, "1"))
    for stream, request_id in ((first, "a"), (second, "b")):
        stream.describe()
        stream.submit(request_id)
        stream.step([request_id])
    state, view = run_of(first.facts + second.facts)
    assert {label: engine.num_running for label, engine in state.engines.items()} == {"0": 1, "1": 1}
    assert [(step.engine, len(step.outputs)) for step in view.steps] == [("0", 1), ("1", 1)]
    assert (state.sequences["a"].engine, state.sequences["b"].engine) == ("0", "1")


def test_processes_and_their_ends_are_known() -> None:
    state, _ = run_of([(ENGINE, ProcessStarted("EngineCore_DP0", 200, 10, 20))])
    assert [(each.role, each.state) for each in state.processes.all()] == [("EngineCore_DP0", "starting")]
    state.apply(ENGINE, SourceGone())
    assert [each.state for each in state.processes.all()] == ["exited"]


def test_the_last_word_of_an_api_server_is_kept() -> None:
    state, _ = run_of([])
    state.apply(API_SERVER, LoopSampled(0, 10, 0.5, 1, 2, 3))
    state.apply(API_SERVER, LoopSampled(0, 20, 0.1, 1, 2, 3))
    state.apply(API_SERVER, TelemetrySet(2, 0.5, 30))
    assert (state.loops, state.telemetry) == ({0: LoopSampled(0, 20, 0.1, 1, 2, 3)}, TelemetrySet(2, 0.5, 30))


def test_everything_kept_is_bounded() -> None:
    state, _ = run_of([])
    http = HttpRequestEnded("h", 0, "", "/v1/models", "GET", 200, "", "", 1, 2, 3, 4, 5)
    for number in range(MAX_HTTP_REQUESTS + 10):
        state.apply(API_SERVER, http._replace(http_id=f"h-{number}"))
    for number in range(MAX_API_SERVERS + MAX_ROLES + 10):
        state.apply(API_SERVER, LoopSampled(number, 10, 0.5, 1, 2, 3))
        state.apply(API_SERVER._replace(role=f"role-{number}"), RecordsLost(1))
    assert (len(state.http), len(state.loops), len(state.num_lost)) == (
        MAX_HTTP_REQUESTS,
        MAX_API_SERVERS,
        MAX_ROLES + 1,
    )
    assert sum(state.num_lost.values()) == MAX_API_SERVERS + MAX_ROLES + 10


class FailingView(BaseView):
    def record(self, source: Source, record: Record) -> None:
        raise RuntimeError("no")

    def step_closed(self, step: StepFacts) -> None:
        raise RuntimeError("no")


def test_a_view_that_fails_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    state, view = RunState(), RecordingView()
    state.add_view(FailingView())
    state.add_view(view)
    stream = FactStream()
    stream.describe()
    stream.submit()
    stream.step(["r-0"])
    stream.finish("r-0")
    for fact in stream.facts:
        state.apply(*fact)
    assert (len(view.steps), len(view.closed)) == (1, 1)
    assert state.views.num_errors == len(stream.facts) + 1
    assert len(caplog.records) == 1


def test_what_is_no_snapshot_is_refused() -> None:
    with pytest.raises(ValueError, match="not a snapshot of a run"):
        RunState().restore({"engines": 7})


def test_one_that_a_core_has_not_taken_waits_for_the_step_it_is_in() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.step(["r-0"], is_answered=False)
    stream.submit("r-1", is_taken=False)
    state, _ = run_of(stream.facts)
    sent = state.sequences["r-1"].submitted
    assert state.intervals(state.sequences["r-1"], stream.now + 5000)[-2:] == [
        Interval("submit", sent.tokenized_at, sent.submitted_at, ""),
        Interval("submit", sent.submitted_at, stream.now + 5000, "step_in_progress"),
    ]


def test_one_that_was_aborted_before_a_core_took_it_is_explained_by_the_step_that_kept_it_out() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.step(["r-0"], is_answered=False)
    stream.submit("r-1", is_taken=False)
    stream.pass_time(5 * 10**9)
    stream.end("r-1", "abort")
    stream.end_http("http-r-1", 499)
    state, _ = run_of(stream.facts)
    state.tick(stream.pass_time(2 * 10**9))
    (sequence,) = one_request(state, stream.now, "r-1")["sequences"]
    assert sequence["explanation"][0] == (
        "100 % of 5.00 s was waiting in the engine's inbox while step 1 computed 10 tokens, "
        "10 of them of request r-0's prompt."
    )
    assert sequence["stage_ns"]["submit"] == sequence["waits"]["step_in_progress"] + 10_000


@pytest.mark.parametrize("is_core_first", [True, False])
def test_a_sequence_whose_api_server_was_killed_lasts_until_its_last_token(is_core_first: bool) -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    for _ in range(3):
        stream.step(["r-0"])
    alive = len(stream.facts)
    after = stream.of(ENGINE)[len([fact for fact in stream.facts[:alive] if fact[0] == ENGINE]) :]
    for _ in range(2):
        after += [fact for fact in stream.step(["r-0"], is_taken=False) if fact[0] == ENGINE]
    state, view = run_of(stream.facts[:alive] + (after if is_core_first else []))
    state.apply(API_SERVER, SourceGone())
    for fact in [] if is_core_first else after:
        state.apply(*fact)
    (ledger,) = view.closed
    assert (ledger.is_abandoned, ledger.is_partial, ledger.state) == (True, False, "ended")
    assert ledger.num_steps == ledger.num_output_tokens == (5 if is_core_first else 3)
    assert (ledger.intervals[-1].stage, ledger.intervals[-1].ended_at) == ("decode", ledger.last_token_at)
    assert sum(ledger.stage_ns().values()) == ledger.latency_ns
    assert state.invariants.num_broken == 0


def test_what_waits_when_its_api_server_is_killed_waited_until_the_last_step() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0")
    stream.submit("r-1")
    for _ in range(3):
        stream.step(["r-0"], head_reason="max_num_seqs")
    state, view = run_of(stream.facts)
    state.apply(API_SERVER, SourceGone())
    waiting = view.closed[-1]
    over_at = state.engines["0"].builder.over_at
    assert (waiting.request_id, waiting.intervals[-1].reason) == ("r-1", "max_num_seqs")
    assert waiting.intervals[-1].ended_at == waiting.ended_at == over_at


def test_a_dead_engine_has_nothing_and_what_it_had_can_be_looked_up() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=10)
    stream.submit("r-1")
    stream.step(["r-0"])
    state, _ = run_of(stream.facts)
    before = block_list(state, "0", None)
    assert before["levels"] == {"num_active": 3, "num_cached": 0, "num_free": 61}
    state.apply(ENGINE, SourceGone())
    engine = state.past_engines[0]
    assert (engine.num_running, engine.num_waiting, engine.block_levels) == (0, 0, BlockLevels(0, 0, 0))
    after = block_list(state, "0", None)
    assert (after["levels"], set(after["states"]), after["requests"]) == (
        {"num_active": 0, "num_cached": 0, "num_free": 0},
        {"free"},
        [],
    )
    assert block_list(state, "0", 1) == before


def test_a_dead_engine_can_be_seen_as_its_last_step_left_it_even_if_that_changed_no_block() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=10)
    for _ in range(2):
        stream.step(["r-0"])
    state, _ = run_of(stream.facts)
    before = block_list(state, "0", None)
    state.apply(ENGINE, SourceGone())
    assert block_list(state, "0", 2)["states"] == before["states"]
    assert block_list(state, "0", None)["step"] == 3


def test_the_block_map_catches_up_though_its_sequences_are_told_over_many_steps() -> None:
    stream = FactStream()
    stream.describe()
    names = [f"r-{number}" for number in range(3)]
    for name in names:
        stream.submit(name)
    stream.step(names)
    state, _ = run_of(stream.facts)
    state.apply(ENGINE, RecordsLost(3))
    # As the engine does it: some tables a step, while others come and go.
    for number, name in enumerate(names):
        stream.submit(f"short-{number}")
        facts = stream.facts[-2:] + stream.step([*names, f"short-{number}"])
        keyframes = stream.keyframes()
        tables = [
            fact for fact in keyframes if isinstance(fact[1], RequestKeyframe) and fact[1].request_id == name
        ]
        facts += [keyframes[0], *tables]
        facts += stream.finish(f"short-{number}")
        facts += stream.step(names)
        for fact in facts:
            state.apply(*fact)
    assert (state.engines["0"].blocks.is_exact, state.invariants.num_broken) == (True, 0)


def test_levels_of_blocks_are_the_plans_while_the_map_lacks_records() -> None:
    stream = FactStream()
    stream.describe()
    stream.submit("r-0", num_prompt_tokens=10)
    stream.step(["r-0"])
    state, _ = run_of(stream.facts)
    state.apply(ENGINE, RecordsLost(3))
    for fact in stream.step(["r-0"]):
        state.apply(*fact)
    engine = state.engines["0"]
    assert (engine.blocks.is_exact, engine.block_levels) == (False, stream.blocks.levels)
    assert block_list(state, "0", None)["levels"] == engine.block_levels._asdict()
