"""Processes are shown with what they do now, and how they ended."""

import os
from pathlib import Path

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.inspect_processes import process_rows, processes_view
from vllm_obs.telemetry.process_table import ProcessTable
from vllm_obs.telemetry.recent_rates import RecentRates
from vllm_obs.telemetry.records import ProcessExited, ProcessPhase, ProcessReady, ProcessStarted
from vllm_obs.telemetry.view import Source

S = 1_000_000_000
CORE = Source("EngineCore_DP0", 4_000_000, 1, "0")


def table_of(*records: ProcessStarted | ProcessPhase | ProcessReady | ProcessExited) -> ProcessTable:
    table = ProcessTable()
    for record in records:
        match record:
            case ProcessStarted():
                table.started(record)
            case ProcessPhase():
                table.phase(CORE, record)
            case ProcessReady():
                table.ready(record)
            case ProcessExited():
                table.exited(record)
    return table


def test_a_live_process_says_what_it_does(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, begin=100 * S) as run:
        run.start()
        run.serve("a")
        run.core.doing(Activity.EXECUTING)
        rows = {row["role"]: row for row in process_rows(ProcessTable(), tmp_path, run.now + S)}
        core = rows["EngineCore_DP0"]
        assert (core["pid"], core["parent_pid"], core["activity"]) == (os.getpid(), os.getppid(), "executing")
        assert core["heartbeat_age_seconds"] == pytest.approx(1.003)
        assert (core["step"], core["ring"], core["num_dropped_records"]) == (3, "EngineCore_DP0.ring", 0)
        assert core["cpu_seconds"] > 0
        assert core["rss_bytes"] > 1_000_000


def test_one_that_was_killed_is_gone_and_one_that_closed_has_exited(tmp_path: Path) -> None:
    closed = FlightRecorder(tmp_path / "Worker_TP0.ring", "Worker_TP0", 4096)
    closed.close()
    # A copy has no writer that holds its lock, like the ring of a killed process.
    killed = FlightRecorder(tmp_path / "source", "EngineCore_DP0", 4096)
    (tmp_path / "EngineCore_DP0.ring").write_bytes((tmp_path / "source").read_bytes())
    killed.close()
    rows = {row["role"]: row for row in process_rows(ProcessTable(), tmp_path, S)}
    assert (rows["Worker_TP0"]["state"], rows["Worker_TP0"]["heartbeat_age_seconds"]) == ("exited", None)
    assert rows["EngineCore_DP0"]["state"] == "gone"


def test_an_exit_that_was_seen_is_told() -> None:
    table = table_of(
        ProcessStarted("EngineCore_DP0", 4_000_000, S, S), ProcessExited("EngineCore_DP0", 4_000_000, -9, 3 * S)
    )
    (row,) = process_rows(table, None, 9 * S)
    assert (row["state"], row["exit_code"], row["exited_at"]) == ("exited", -9, 3 * S)


def test_a_recording_does_not_look_at_this_hosts_processes() -> None:
    table = table_of(
        ProcessStarted("EngineCore_DP0", os.getpid(), S, S), ProcessReady("EngineCore_DP0", os.getpid(), 2 * S)
    )
    (row,) = process_rows(table, None, 9 * S)
    assert (row["state"], row["rss_bytes"], row["title"]) == ("ready", None, "")


def test_what_is_no_ring_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.ring").write_bytes(b"no ring")
    assert process_rows(ProcessTable(), tmp_path, S) == []


def test_a_second_look_knows_rates_and_every_start_of_a_role_counts(tmp_path: Path) -> None:
    table = table_of(
        ProcessStarted("APIServer_0", 4_000_001, S, S), ProcessExited("APIServer_0", 4_000_001, -9, 3 * S)
    )
    with ScriptedRun(tmp_path, begin=100 * S) as run:
        run.start()
        rates = RecentRates()
        first, second = (
            {
                row["pid"]: row
                for row in processes_view(table, tmp_path, at * S, rates)
                if row["role"] == "APIServer_0"
            }
            for at in (101, 103)
        )
        gone, alive = second[4_000_001], second[os.getpid()]
        assert (gone["num_starts"], gone["uptime_seconds"], gone["cpu_share"]) == (2, 2.0, None)
        assert first[os.getpid()]["cpu_share"] is None
        assert alive["cpu_share"] >= 0
        assert (alive["ring_bytes"], alive["ring_turn_seconds"]) == (1 << 20, None), (
            "nothing was written meanwhile"
        )
        assert alive["num_fds"] > 0
        assert alive["kernel_state"] == "running"


def test_how_soon_a_ring_is_written_over_is_told(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, begin=100 * S) as run:
        run.start()
        rates = RecentRates()
        processes_view(ProcessTable(), tmp_path, 101 * S, rates)
        before = {row["role"]: row["ring_written_bytes"] for row in process_rows(ProcessTable(), tmp_path, S)}
        run.serve("a")
        rows = {row["role"]: row for row in processes_view(ProcessTable(), tmp_path, 103 * S, rates)}
        core = rows["EngineCore_DP0"]
        rate = (core["ring_written_bytes"] - before["EngineCore_DP0"]) / 2
        assert core["ring_turn_seconds"] == pytest.approx((1 << 20) / rate)
