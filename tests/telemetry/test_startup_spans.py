"""The start-up trace: one tree for the run, a span for each process, and how much of it is accounted for."""

from span_facts import API, CORE, SpanList

from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.spans import SpansView
from vllm_obs.telemetry.startup_spans import MAX_PROCESSES, StartupSpans
from vllm_obs.telemetry.view import Source

OBSERVER = Source("Observer", 12, 3, "")
AGAIN = Source("EngineCore_DP0", 21, 9, "0")


class Start:
    """A view and its spans, and what processes record while they start."""

    def __init__(self) -> None:
        self.sink = SpanList()
        self.view = SpansView("run-1", self.sink)

    def process(self, source: Source, started_at: int, *phases: tuple[str, int, int]) -> None:
        self.view.record(source, ProcessStarted(source.role, source.pid, started_at, 10**18 + started_at))
        for name, begun_at, ended_at in phases:
            self.view.record(source, ProcessPhase(source.role, name, begun_at, ended_at))

    def ready(self, source: Source, at: int) -> None:
        self.view.record(source, ProcessReady(source.role, source.pid, at))

    def shown(self) -> list[tuple[str, str, int, int]]:
        by_id = {span.span_id: span.name for span in self.sink.spans}
        return [
            (span.name, by_id.get(span.parent_id, ""), span.begun_at, span.ended_at) for span in self.sink.spans
        ]


def test_a_run_is_one_trace_when_all_of_it_is_ready() -> None:
    start = Start()
    start.process(API, 1000, ("imports", 1000, 1500), ("engine", 1500, 5000))
    start.process(CORE, 1600, ("imports", 1600, 2000), ("load", 2000, 4000), ("warm-up", 4000, 4800))
    start.process(OBSERVER, 4900)
    start.ready(CORE, 4800)
    assert start.sink.spans == []
    start.ready(API, 5000)
    assert start.shown() == [
        ("startup", "", 1000, 5000),
        ("start APIServer_0", "startup", 1000, 5000),
        ("imports", "start APIServer_0", 1000, 1500),
        ("engine", "start APIServer_0", 1500, 5000),
        ("start EngineCore_DP0", "startup", 1600, 4800),
        ("imports", "start EngineCore_DP0", 1600, 2000),
        ("load", "start EngineCore_DP0", 2000, 4000),
        ("warm-up", "start EngineCore_DP0", 4000, 4800),
    ]
    assert len({span.trace_id for span in start.sink.spans}) == 1
    accounted = [span.attributes.get("vllm_obs.startup.accounted") for span in start.sink.spans]
    assert accounted == [None, 1.0, None, None, 1.0, None, None, None]


def test_a_phase_within_another_is_its_child() -> None:
    start = Start()
    start.process(API, 0, ("a", 0, 10), ("innermost", 12, 13), ("inner", 11, 15), ("outer", 10, 20))
    start.ready(API, 20)
    assert [shown[:2] for shown in start.shown()[2:]] == [
        ("a", "start APIServer_0"),
        ("innermost", "inner"),
        ("inner", "outer"),
        ("outer", "start APIServer_0"),
    ]


def test_what_no_phase_covers_is_not_accounted_for() -> None:
    start = Start()
    start.process(API, 1000, ("a", 1000, 1400), ("inside", 1100, 1300), ("late", 1500, 9000), ("none", 1700, 1600))
    start.ready(API, 2000)
    assert start.sink.one("start APIServer_0").attributes["vllm_obs.startup.accounted"] == 0.9


def test_a_start_begins_where_the_process_was_spawned() -> None:
    start = Start()
    start.process(API, 1000, ("start process", 700, 1000), ("load", 1000, 2000))
    start.ready(API, 2000)
    assert [(span.begun_at, span.ended_at) for span in start.sink.spans[:2]] == [(700, 2000), (700, 2000)]
    assert start.sink.one("start APIServer_0").attributes["vllm_obs.startup.accounted"] == 1.0


def test_a_process_that_starts_again_has_a_trace_of_its_own() -> None:
    start = Start()
    start.process(API, 1000)
    start.ready(API, 2000)
    start.process(AGAIN, 7000, ("load", 7000, 8000))
    start.ready(AGAIN, 8000)
    start.ready(AGAIN, 8001)
    assert start.shown()[2:] == [
        ("start EngineCore_DP0", "", 7000, 8000),
        ("load", "start EngineCore_DP0", 7000, 8000),
    ]
    assert start.sink.spans[-1].trace_id != start.sink.spans[0].trace_id


def test_processes_that_never_get_ready_are_bounded() -> None:
    startup = StartupSpans("run-1")
    for generation in range(1000):
        source = Source("EngineCore_DP0", generation, generation, "0")
        startup.started(source, ProcessStarted(source.role, source.pid, 1, 2))
    assert len(startup._starts) == MAX_PROCESSES


def test_phases_of_a_process_are_bounded() -> None:
    start = Start()
    start.process(API, 0, *((f"p{number}", number, number + 1) for number in range(1000)))
    start.ready(API, 1000)
    assert len(start.sink.spans) == 2 + 256
