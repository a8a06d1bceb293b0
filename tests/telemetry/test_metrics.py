import pytest
from metric_facts import API, CORE, DESCRIBED, MS, TRACED, MetricFacts, begun_facts, generate_two_tokens, rounded

from vllm_obs.telemetry.catalogue_own import ERROR_TYPES, FRAME_REASONS
from vllm_obs.telemetry.metric_store import MAX_SERIES
from vllm_obs.telemetry.process_reader import ProcessNumbers
from vllm_obs.telemetry.records import (
    EngineRestarted,
    EngineStateChanged,
    FrameDropped,
    LoopSampled,
    OutputsTaken,
    ProcessExited,
    ProcessPhase,
    ProcessStarted,
    RequestTaken,
    StepFailed,
    TelemetrySet,
)
from vllm_obs.telemetry.sequence_book import RELEASE_GRACE_NS
from vllm_obs.telemetry.view import RecordsLost, Source, SourceGone

CORE_LEVELS = ("vllm:num_requests", "vllm:kv_cache_usage_perc", "vllm_obs_kv_blocks", "vllm_obs_kv_tokens")
ENGINE_LEVELS = (
    "vllm:num_requests",
    "vllm:kv_cache_usage_perc",
    "vllm:engine_sleep_state",
    "vllm_obs_kv",
    "vllm_obs_queue_depth",
)


def test_a_request_shows_in_every_engine_counter() -> None:
    facts = begun_facts()
    generate_two_tokens(facts)
    assert facts.samples("vllm:prefix", "vllm:prompt_t", "vllm:gen", "vllm:request_s", "vllm:num_pre") == {
        "vllm:prefix_cache_queries_total": 10,
        "vllm:prompt_tokens_total": 10,
        "vllm:prompt_tokens_by_source_total{source=local_compute}": 10,
        "vllm:generation_tokens_total": 2,
        "vllm:request_success_total{finished_reason=length}": 1,
    }


def test_twenty_cancelled_streams_leave_no_level() -> None:
    facts = begun_facts()
    names = [f"r{number}" for number in range(20)]
    for name in names:
        facts.submit(name, max_tokens=100)
        facts.take(name)
    facts.run(dict.fromkeys(names, 10), *names)
    before = facts.samples(*ENGINE_LEVELS)
    for name in names:
        facts.end(name, "abort")
        facts.release(name, "abort")
    assert before["vllm:num_requests_running"] == 20
    assert facts.samples(*ENGINE_LEVELS) == {
        "vllm:engine_sleep_state{sleep_state=awake}": 1,
        "vllm_obs_kv_blocks{state=free}": 100,
    }


def test_a_client_that_leaves_during_a_long_step_changes_no_level_before_its_end() -> None:
    facts = begun_facts()
    facts.submit("a", num_prompt_tokens=20, max_tokens=100)
    facts.take("a")
    step = facts.plan({"a": 20})
    before = facts.samples(*CORE_LEVELS)
    facts.end("a", "abort")
    facts.later(RELEASE_GRACE_NS / MS + 1)
    facts.state.tick(facts.now)
    assert [ledger.request_id for ledger in facts.state.ended] == ["a"]
    assert before["vllm:num_requests_running"] == facts.state.engines["0"].num_running == 1
    assert facts.samples(*CORE_LEVELS) == before
    facts.answer(step, "a")
    facts.release("a", "abort")
    assert facts.samples(*CORE_LEVELS, "vllm:iteration_tokens_total_sum", "vllm:prompt_tokens_total") == {
        "vllm_obs_kv_blocks{state=free}": 100,
        "vllm:iteration_tokens_total_sum": 20,
        "vllm:prompt_tokens_total": 20,
    }


def test_a_sequence_whose_release_was_lost_has_no_level_once_the_core_has_counted() -> None:
    facts = begun_facts()
    for name in ("a", "b"):
        facts.submit(name, num_prompt_tokens=20, max_tokens=100)
        facts.take(name)
    facts.run({"a": 20, "b": 20}, "a", "b")
    facts.state.apply(CORE, RecordsLost(1))
    facts.forget("a")
    facts.run({"b": 1}, "b")
    levels = facts.samples("vllm:num_requests_running", "vllm_obs_kv_tokens")
    assert levels == {"vllm:num_requests_running": 1, "vllm_obs_kv_tokens": 21}


def test_waiting_sequences_are_seen_before_any_step() -> None:
    facts = begun_facts()
    for name in ("a", "b", "c"):
        facts.submit(name)
    facts.take("a")
    facts.take("b")
    assert facts.samples("vllm:num_requests", "vllm_obs_queue_depth") == {
        "vllm:num_requests_waiting": 2,
        "vllm:num_requests_waiting_by_reason{reason=capacity}": 2,
        "vllm_obs_queue_depth{queue=inbox}": 1,
        "vllm_obs_queue_depth{queue=waiting}": 2,
        "vllm_obs_queue_depth{queue=open_sequences}": 3,
    }


def test_a_dead_engine_has_no_levels_and_keeps_its_counters() -> None:
    facts = begun_facts()
    facts.submit("a", max_tokens=100)
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.tell(API, ProcessExited("EngineCore_DP0", CORE.pid, -9, facts.later()))
    assert facts.samples(*ENGINE_LEVELS) == {"vllm_obs_queue_depth{queue=open_sequences}": 1}
    facts.end("a", "error", error="engine_dead")
    assert facts.samples(*ENGINE_LEVELS) == {}
    facts.state.apply(CORE, SourceGone())
    assert facts.samples("vllm:request_success", "vllm:gen", "vllm_obs_errors") == {
        "vllm:request_success_total{finished_reason=error}": 1,
        "vllm:generation_tokens_total": 1,
        "vllm_obs_errors_total{type=engine_dead,where=sequence}": 1,
    }


def test_what_is_read_late_of_a_dead_engine_takes_no_level_from_the_one_after_it() -> None:
    facts = MetricFacts(root_pid=1)
    again = CORE._replace(pid=201, generation=3)
    facts.processes.by_pid[again.pid] = ProcessNumbers(again.pid, 10, 1.0, 4096, 2048, 1, 3)
    facts.describe()
    facts.tell(again, DESCRIBED._replace(described_at=facts.later()))
    facts.submit("a")
    facts.tell(again, RequestTaken("a", 0, facts.now, facts.later(), 10, 2, 0))
    before = facts.samples("vllm:engine_sleep_state", "vllm:num_requests_waiting")
    facts.tell(CORE, EngineStateChanged("weights_offloaded", facts.later()))
    assert before["vllm:num_requests_waiting"] == 1
    assert facts.samples("vllm:engine_sleep_state", "vllm:num_requests_waiting") == before
    resumed = facts.new_view(root_pid=1)
    resumed.restore(facts.view.state())
    facts.state.add_view(resumed)
    facts.tell(CORE, EngineStateChanged("weights_offloaded", facts.later()))
    assert facts.samples("vllm:engine_sleep_state", "vllm:num_requests_waiting", view=resumed) == before


def test_an_engine_does_not_wake_by_what_is_read_after_its_death() -> None:
    facts = begun_facts()
    facts.tell(API, ProcessExited("EngineCore_DP0", CORE.pid, -9, facts.later()))
    facts.tell(CORE, EngineStateChanged("awake", facts.later()))
    assert facts.samples("vllm:engine_sleep_state") == {}


def test_a_delay_by_the_clock_of_another_host_takes_nothing_from_a_sum() -> None:
    facts = begun_facts()
    for sent_at, taken_at in ((facts.now, facts.now + 3 * MS), (facts.now, facts.now - 2 * MS)):
        facts.tell(API, OutputsTaken(1, 0, 0, sent_at, sent_at, taken_at, taken_at, 1))
    assert rounded(facts.samples("vllm_obs_ipc_delay_seconds")) == {
        "vllm_obs_ipc_delay_seconds_count{direction=output}": 2,
        "vllm_obs_ipc_delay_seconds_sum{direction=output}": 0.003,
    }


def test_an_engine_whose_death_nobody_recorded_has_no_levels() -> None:
    facts = MetricFacts(root_pid=1)
    facts.describe()
    facts.submit("a")
    facts.take("a")
    assert "vllm:num_requests_waiting" not in facts.samples(*ENGINE_LEVELS)


def test_an_engine_that_cannot_be_looked_at_keeps_its_levels() -> None:
    facts = MetricFacts(root_pid=1)
    numbers = ProcessNumbers(CORE.pid, 10, 1.0, 4096, 2048, 1, 3)
    facts.processes.by_pid[CORE.pid] = numbers
    facts.describe()
    facts.submit("a")
    facts.take("a")
    waits = {"vllm:num_requests_waiting": 1}
    for unreadable in (set(), {CORE.pid}, set()):
        facts.processes.unreadable = unreadable
        assert facts.samples("vllm:num_requests_waiting") == waits | {
            "vllm:num_requests_waiting_by_reason{reason=capacity}": 1
        }
    del facts.processes.by_pid[CORE.pid]
    assert facts.samples("vllm:num_requests_waiting") == {}


def test_a_new_engine_process_begins_with_nothing() -> None:
    facts = begun_facts()
    facts.submit("a", max_tokens=100)
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.tell(Source("EngineCore_DP0", 201, 3, "0"), DESCRIBED._replace(described_at=facts.later()))
    samples = facts.samples("vllm:num_requests", "vllm_obs_kv_blocks", "vllm:gen", "vllm:cache_config_info")
    (info,) = [name for name in samples if name.startswith("vllm:cache_config_info")]
    assert samples == {"vllm:generation_tokens_total": 1, "vllm_obs_kv_blocks{state=free}": 100, info: 1}


def test_delays_between_processes_are_seen_both_ways() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    assert rounded(facts.samples("vllm_obs_ipc")) == {
        "vllm_obs_ipc_delay_seconds_sum{direction=request}": 0.001,
        "vllm_obs_ipc_delay_seconds_count{direction=request}": 1,
        "vllm_obs_ipc_delay_seconds_sum{direction=output}": 0.002,
        "vllm_obs_ipc_delay_seconds_count{direction=output}": 1,
    }


def test_failed_steps_and_dropped_frames_are_errors() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    step = facts.plan({"a": 10})
    facts.tell(CORE, StepFailed(step, "RuntimeError: no", facts.later(), ["a"]))
    facts.tell(CORE, FrameDropped("engine_input", "bad_payload", facts.later()))
    assert facts.samples("vllm_obs_errors", "vllm_obs_steps_total", "vllm:iteration") == {
        "vllm_obs_errors_total{type=internal_error,where=step}": 1,
        "vllm_obs_errors_total{type=other,where=frame}": 1,
        "vllm_obs_steps_total{outcome=failed}": 1,
    }


def test_dropped_frames_are_counted_by_a_reason_of_the_closed_set() -> None:
    facts = begun_facts()
    for reason in ("parts", "decode", "decode", "made up", "unknown"):
        facts.tell(CORE, FrameDropped("engine_input", reason, facts.later()))
    assert facts.samples("vllm_obs_bad_frames", "vllm_obs_errors") == {
        "vllm_obs_bad_frames_total{reason=decode}": 2,
        "vllm_obs_bad_frames_total{reason=other}": 1,
        "vllm_obs_bad_frames_total{reason=parts}": 1,
        "vllm_obs_bad_frames_total{reason=unknown}": 1,
        "vllm_obs_errors_total{type=other,where=frame}": 4,
    }


def test_the_api_servers_queues_and_lag_are_seen() -> None:
    facts = begun_facts()
    facts.tell(API, LoopSampled(0, facts.later(), 0.25, 3, 5, 7))
    assert facts.samples("vllm_obs_queue", "vllm_obs_event_loop") == {
        "vllm_obs_queue_depth{queue=open_http}": 3,
        "vllm_obs_queue_depth{queue=undelivered_deltas}": 7,
        "vllm_obs_event_loop_lag_seconds_count{rank=0,role=APIServer}": 1,
        "vllm_obs_event_loop_lag_seconds_sum{rank=0,role=APIServer}": 0.25,
    }
    facts.tell(API, ProcessExited("APIServer_0", API.pid, 0, facts.later()))
    assert facts.samples("vllm_obs_queue") == {}


def test_the_pressure_is_that_of_the_worst_source_and_falls_with_it() -> None:
    facts = begun_facts()
    facts.tell(API, LoopSampled(0, facts.later(), 0.0, 0, 0, 0, 0.85, "memory"))
    assert facts.samples("vllm_obs_pressure") == {"vllm_obs_pressure{source=memory}": 0.85}
    facts.tell(API, LoopSampled(0, facts.later(), 0.0, 0, 0, 0, 0.5, "queue"))
    assert facts.samples("vllm_obs_pressure") == {"vllm_obs_pressure{source=queue}": 0.5}


def test_open_connections_and_their_limit_are_shown_until_the_server_ends() -> None:
    facts = begun_facts()
    facts.tell(API, LoopSampled(0, facts.later(), 0.0, 0, 0, 0, num_connections=40, max_num_connections=8192))
    assert facts.samples("vllm_obs_connections") == {
        "vllm_obs_connections": 40,
        "vllm_obs_connections_limit": 8192,
    }
    facts.tell(API, ProcessExited("APIServer_0", API.pid, 0, facts.later()))
    assert facts.samples("vllm_obs_connections") == {}


def test_start_up_and_telemetry_settings_are_shown() -> None:
    facts = begun_facts()
    facts.tell(CORE, ProcessPhase("EngineCore_DP0", "load", 0, 1500 * MS))
    facts.tell(API, TelemetrySet(2, 0.5, facts.later()))
    assert facts.samples("vllm_obs_startup", "vllm_obs_telemetry_d", "vllm_obs_trace", "vllm_obs_build") == {
        "vllm_obs_startup_seconds{phase=load,rank=DP0,role=EngineCore}": 1.5,
        "vllm_obs_telemetry_detail_level": 2,
        "vllm_obs_trace_sample_ratio": 0.5,
        "vllm_obs_build_info{version=1.2.3}": 1,
    }


def test_a_process_that_is_started_again_is_counted_again() -> None:
    facts = begun_facts()
    for pid in (7, 8):
        observer = Source("Observer", pid, pid, "")
        facts.tell(observer, ProcessStarted("Observer", pid, facts.later(), 0))
    assert facts.samples("vllm_obs_process_starts") == {"vllm_obs_process_starts_total{rank=,role=Observer}": 2}


def test_an_engine_that_takes_the_place_of_a_dead_one_is_counted() -> None:
    facts = begun_facts()
    for generation in (1, 2):
        restarted = EngineRestarted("0", generation, "EngineCore_DP0 was killed by SIGKILL", 3, 1, facts.later())
        facts.tell(API, restarted)
    assert facts.samples("vllm_obs_engine_restarts") == {"vllm_obs_engine_restarts_total": 2}


def test_what_may_go_wrong_is_at_zero_before_it_does() -> None:
    lines = begun_facts().text().splitlines()
    assert 'vllm_obs_engine_restarts_total{engine="0"} 0.0' in lines
    assert 'vllm_obs_recorder_lost_records_total{rank="DP0",role="EngineCore"} 0.0' in lines
    for where, kind in [*(("http", kind) for kind in ERROR_TYPES), ("step", "internal_error")]:
        assert f'vllm_obs_errors_total{{type="{kind}",where="{where}"}} 0.0' in lines
    for reason in FRAME_REASONS:
        assert f'vllm_obs_bad_frames_total{{reason="{reason}"}} 0.0' in lines


def test_lost_records_are_counted_by_who_wrote_them() -> None:
    facts = begun_facts()
    facts.state.apply(CORE, RecordsLost(7))
    assert facts.samples("vllm_obs_recorder") == {
        "vllm_obs_recorder_records_total{rank=DP0,role=EngineCore}": 1,
        "vllm_obs_recorder_lost_records_total{rank=DP0,role=EngineCore}": 7,
    }


def test_counters_go_on_from_a_checkpoint() -> None:
    facts = begun_facts()
    generate_two_tokens(facts)
    facts.submit("b", trace_parent=TRACED)
    facts.take("b")
    facts.run({"b": 4})
    step = facts.plan({"b": 6})
    checkpoint = facts.view.state()
    resumed = facts.new_view()
    resumed.restore(checkpoint)
    assert facts.samples("", view=resumed) == facts.samples("")
    facts.state.add_view(resumed)
    facts.answer(step, "b")
    facts.run({"b": 1}, "b")
    facts.finish("b")
    assert facts.samples("", view=resumed) == facts.samples("")


def test_engines_are_counted_apart() -> None:
    facts = begun_facts()
    other = Source("EngineCore_DP1", 300, 4, "1")
    facts.tell(other, DESCRIBED._replace(engine_index=1, max_model_len=20, described_at=facts.later()))
    generate_two_tokens(facts)
    store = facts.view.store
    assert store.value("vllm:generation_tokens_total", "0", "model").number == 2
    assert store.value("vllm:generation_tokens_total", "1", "model").number == 0
    assert store.histogram("vllm:request_prompt_tokens", "1", "model").bounds == (1, 2, 5, 10, 20)
    facts.tell(API, ProcessExited("EngineCore_DP1", other.pid, -9, facts.later()))
    facts.view.refresh(facts.now)
    awake = [store.value("vllm:engine_sleep_state", engine, "model", "awake").number for engine in "01"]
    assert awake == [True, False]


def test_a_wrong_checkpoint_is_an_error() -> None:
    state = begun_facts().view.state()
    for wrong in ([99, *state[1:]], state[:2], None):
        with pytest.raises((TypeError, ValueError)):
            MetricFacts().view.restore(wrong)


def test_a_hundred_thousand_names_make_no_new_series() -> None:
    facts = begun_facts()
    generate_two_tokens(facts)
    facts.end_http(handler="other", method="other", status=404, reason="not_found")
    http = facts.state.http[-1]
    num_before = len(facts.text().splitlines())
    submitted = facts.state.ended.get("a").submitted  # type: ignore[union-attr]
    for number in range(100_000):
        name = f"name-{number}"
        facts.view.record(API, submitted._replace(request_id=name, model=name, external_id=name, operation=name))
        facts.view.record(API, http._replace(http_id=name, external_id=name, method=name, reason=name))
    shown = facts.text()
    # The unknown error, once.
    assert len(shown.splitlines()) == num_before + 1
    assert "name-" not in shown
    assert facts.samples("vllm_obs_queue") == {
        "vllm_obs_queue_depth{queue=inbox}": 65_536,
        "vllm_obs_queue_depth{queue=open_sequences}": 65_536,
    }


def test_labels_that_should_be_closed_and_are_not_have_a_bound() -> None:
    facts = begun_facts()
    facts.end_http()
    http = facts.state.http[-1]
    for number in range(3000):
        facts.view.record(API, http._replace(handler=f"/path/{number}"))
        facts.view.record(Source(f"Worker_TP{number}", number, number + 10, "0"), http)
    counts = {name: len(family.series) for name, family in facts.view.store.families.items()}
    assert max(counts.values()) <= MAX_SERIES + 1
    assert facts.view.store.value("http_requests_total", "other", "other", "other").number == 3000 - 1023
    assert facts.view.store.value("http_requests_total", "/v1/chat/completions", "POST", "2xx").number == 3001
