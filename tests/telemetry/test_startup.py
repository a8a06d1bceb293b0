"""A start is told whole: what each process did, what being ready hung on, and what no phase explains."""

from typing import Any

import pytest

from vllm_obs.telemetry.process_table import ProcessTable
from vllm_obs.telemetry.records import ProcessExited, ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.startup import startup_view
from vllm_obs.telemetry.view import Source

S = 1_000_000_000
ROLES = ("APIServer_0", "EngineCore_DP0", "Observer", "Worker_TP0", "Worker_TP1")

Phases = tuple[tuple[str, float, float], ...]


class Start:
    """Processes as they record their start, in seconds."""

    def __init__(self) -> None:
        self.table = ProcessTable()

    def process(self, role: str, phases: Phases, ready: float | None, pid: int = 0) -> None:
        pid = pid or ROLES.index(role) + 1
        source = Source(role, pid, pid, "")
        started_at = int(phases[0][2] * S)
        self.table.started(ProcessStarted(role, pid, started_at, 1))
        self.table.seen(source)
        for name, begun_at, ended_at in phases:
            self.table.phase(source, ProcessPhase(role, name, int(begun_at * S), int(ended_at * S)))
        if ready is not None:
            self.table.ready(ProcessReady(role, pid, int(ready * S)))

    def view(self, now: float = 100) -> dict[str, Any]:
        return startup_view(self.table, int(now * S))


def path(view: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(each["role"], each["phase"], each["seconds"]) for each in view["run"]["critical_path"]]


API: Phases = (
    ("start process", 0, 1),
    ("start engine", 1, 1.5),
    ("import web framework", 1.5, 2.5),
    ("import server", 1.5, 3),
    ("wait for engine", 3, 10),
    ("open", 10, 10.5),
)
ENGINE: Phases = (
    ("start process", 1.25, 2),
    ("import torch", 2, 5),
    ("load weights", 5, 9),
    ("make core", 2, 9),
    ("start threads", 9, 9.5),
)


def one_device() -> Start:
    start = Start()
    start.process("APIServer_0", API, 10.5)
    start.process("EngineCore_DP0", ENGINE, 9.5)
    start.process("Observer", (("start process", 3, 4), ("imports", 4, 6)), 6)
    return start


def test_being_ready_hung_on_the_engine_from_where_it_was_spawned_to_where_it_was_ready() -> None:
    view = one_device().view()
    assert path(view) == [
        ("APIServer_0", "start process", 1),
        ("APIServer_0", "start engine", 0.25),
        ("EngineCore_DP0", "start process", 0.75),
        ("EngineCore_DP0", "import torch", 3),
        ("EngineCore_DP0", "load weights", 4),
        ("EngineCore_DP0", "start threads", 0.5),
        ("APIServer_0", "wait for engine", 0.5),
        ("APIServer_0", "open", 0.5),
    ]
    run = view["run"]
    assert (run["seconds"], run["accounted"], run["is_ready"], run["ready_at"]) == (10.5, 1.0, True, int(10.5 * S))
    assert view["says"] == (
        "Ready 10.5 s after start; 67 % of it was the engine loading weights (4.0 s) and importing torch (3.0 s)."
    )


def test_an_engine_that_was_ready_early_held_nothing_up() -> None:
    start = Start()
    start.process("APIServer_0", (*API[:4], ("load tokenizer", 3, 9), ("wait for engine", 9, 9.1)), 9.1)
    start.process("EngineCore_DP0", (("start process", 1.25, 2), ("make core", 2, 4)), 4)
    assert path(start.view())[-1] == ("APIServer_0", "wait for engine", 0.1)
    assert {role for role, _, _ in path(start.view())} == {"APIServer_0"}


def test_with_workers_it_hung_on_the_rank_that_loaded_last() -> None:
    start = Start()
    start.process("APIServer_0", API, 10.5)
    start.process(
        "EngineCore_DP0", (("start process", 1.25, 2), ("make core", 2, 9), ("start threads", 9, 9.5)), 9.5
    )
    waiting = "wait for the other ranks"
    slow: Phases = (("start process", 2.5, 3), ("load weights", 3, 7), (waiting, 7, 7.5), ("warm-up", 7.5, 8))
    quick: Phases = (("start process", 2.5, 3), ("load weights", 3, 4), (waiting, 4, 7.5), ("warm-up", 7.5, 8.5))
    start.process("Worker_TP0", quick, 8.5)
    start.process("Worker_TP1", slow, 8)
    assert path(start.view())[2:] == [
        ("EngineCore_DP0", "start process", 0.75),
        ("EngineCore_DP0", "make core", 0.5),
        ("Worker_TP1", "start process", 0.5),
        ("Worker_TP1", "load weights", 4),
        ("Worker_TP0", "wait for the other ranks", 0.5),
        ("Worker_TP0", "warm-up", 1),
        ("EngineCore_DP0", "make core", 0.5),
        ("EngineCore_DP0", "start threads", 0.5),
        ("APIServer_0", "wait for engine", 0.5),
        ("APIServer_0", "open", 0.5),
    ]


def test_phases_of_a_process_tell_of_those_within_them() -> None:
    engine = next(each for each in one_device().view()["processes"] if each["role"] == "EngineCore_DP0")
    shown = [(each["phase"], each["depth"], each["seconds"], each["own_seconds"]) for each in engine["phases"]]
    assert shown == [
        ("start process", 0, 0.75, 0.75),
        ("make core", 0, 7, 0),
        ("import torch", 1, 3, 3),
        ("load weights", 1, 4, 4),
        ("start threads", 0, 0.5, 0.5),
    ]
    assert (engine["seconds"], engine["accounted"], engine["gaps"]) == (8.25, 1.0, [])
    assert [each["share"] for each in engine["phases"]][1] == pytest.approx(7 / 8.25)


def test_what_no_phase_explains_is_said() -> None:
    start = Start()
    start.process("APIServer_0", (("start process", 0, 1), ("import server", 1, 4), ("open", 6, 9)), 10)
    view = start.view()
    (process,) = view["processes"]
    assert (process["accounted"], process["unaccounted_seconds"]) == (pytest.approx(0.7), 3)
    assert [(gap["begun_at"], gap["seconds"]) for gap in process["gaps"]] == [(4 * S, 2), (9 * S, 1)]
    assert (view["run"]["accounted"], view["run"]["unaccounted_seconds"]) == (pytest.approx(0.7), 3)
    assert ("APIServer_0", "unaccounted", 2) in path(view)
    assert "something no phase tells (3.0 s)" in view["says"]


def test_what_starts_again_is_told_apart() -> None:
    start = one_device()
    start.table.exited(ProcessExited("Observer", 3, -9, 20 * S))
    start.process("Observer", (("start process", 21, 22), ("imports", 22, 23)), 23, pid=99)
    view = start.view()
    assert [(each["role"], each["pid"], each["is_later"], each["state"]) for each in view["processes"]] == [
        ("APIServer_0", 1, False, "ready"),
        ("EngineCore_DP0", 2, False, "ready"),
        ("Observer", 3, False, "exited"),
        ("Observer", 99, True, "ready"),
    ]
    assert view["run"]["seconds"] == 10.5


def test_a_run_that_is_not_ready_is_told_so_far() -> None:
    start = Start()
    start.process("APIServer_0", API[:4], None)
    start.process("EngineCore_DP0", ENGINE[:2], None)
    view = start.view(now=7)
    assert (view["run"]["is_ready"], view["run"]["ready_at"], view["run"]["seconds"]) == (False, None, 7)
    assert view["says"].startswith("Not ready 7.0 s after start")


def test_one_that_died_before_it_was_ready_ends_there() -> None:
    start = Start()
    start.process("EngineCore_DP0", ENGINE[:2], None)
    start.table.exited(ProcessExited("EngineCore_DP0", 2, -9, 6 * S))
    (process,) = start.view()["processes"]
    assert (process["seconds"], process["state"], process["ready_at"]) == (4.75, "exited", None)


def test_nothing_known_is_told_as_that() -> None:
    view = startup_view(ProcessTable(), 5)
    assert (view["says"], view["processes"]) == ("No API server of this run is known.", [])
    assert (view["run"]["accounted"], view["run"]["critical_path"]) == (None, [])


def test_what_makes_a_start_slow_is_hinted_at_with_figures() -> None:
    start = Start()
    source = Source("EngineCore_DP0", 2, 2, "0")
    start.process("APIServer_0", API, 10.5)
    start.process("EngineCore_DP0", (("start process", 1.25, 2), ("wait for kernels", 8, 9)), 9)
    start.table.phase(source, ProcessPhase("EngineCore_DP0", "import torch", 2 * S, 4 * S, 0.5, 300_000_000))
    start.table.phase(source, ProcessPhase("EngineCore_DP0", "load weights", 4 * S, 9 * S, 3.0, 270_000_000))
    hints = start.view()["hints"]
    assert len(hints) == 3
    assert "the engine importing torch (300 MB in 2.0 s, 150 MB/s)" in hints[0]
    assert "the engine loading weights (270 MB in 4.0 s, 68 MB/s)" in hints[0]
    assert "1.0 s before the kernels were compiled" in hints[1]
    assert hints[2].startswith("The engine had a core for 0.5 s of the 2.0 s of 'import torch'")


def test_a_warm_and_idle_start_needs_no_hint() -> None:
    assert one_device().view()["hints"] == []


def test_with_a_launcher_being_ready_hung_on_the_last_api_server_and_the_slowest_engine() -> None:
    start = Start()
    start.process("Launcher", (("read configuration", 0, 0.2),), 9.5, pid=50)
    for number, ready in enumerate((6.0, 8.0)):
        spawned = 0.5 + 0.1 * number
        phases: Phases = (("start process", spawned, 2), ("make core", 2, ready))
        start.process(f"EngineCore_DP{number}", phases, ready, pid=60 + number)
        rank: Phases = (("start process", 2, 3), ("load weights", 3, ready - 0.5))
        start.process(f"Worker_DP{number}_TP0_PP0", rank, ready - 0.5, pid=70 + number)
        server: Phases = (("start process", 1, 2), ("wait for engine", 2, 9 + 0.2 * number))
        start.process(f"APIServer_{number}", server, 9 + 0.2 * number, pid=80 + number)
    view = start.view()
    found = [(role, phase) for role, phase, _ in path(view)]
    assert found == [
        ("Launcher", "read configuration"),
        ("Launcher", "unaccounted"),
        ("EngineCore_DP1", "start process"),
        ("Worker_DP1_TP0_PP0", "start process"),
        ("Worker_DP1_TP0_PP0", "load weights"),
        ("EngineCore_DP1", "make core"),
        ("APIServer_1", "wait for engine"),
        ("Launcher", "unaccounted"),
    ]
    assert view["run"]["is_ready"]
    assert view["run"]["seconds"] == 9.5
