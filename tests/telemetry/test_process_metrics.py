import os
import subprocess
import sys
from pathlib import Path

from metric_facts import DESCRIBED, MetricFacts

from vllm_obs.telemetry.process_metrics import MAX_PROCESSES, split_role
from vllm_obs.telemetry.process_reader import ProcessNumbers, ProcessReader
from vllm_obs.telemetry.records import GarbageSampled
from vllm_obs.telemetry.view import Source

ROOT = ProcessNumbers(100, 5000, 2.5, 1 << 30, 1 << 20, 7, 12)
ENGINE = ProcessNumbers(200, 6000, 40.0, 1 << 31, 1 << 21, 9, 20)


def told(*numbers: ProcessNumbers) -> MetricFacts:
    facts = MetricFacts(root_pid=ROOT.pid)
    facts.processes.by_pid = {each.pid: each for each in numbers}
    facts.describe()
    facts.end_http()
    return facts


def test_the_root_process_is_shown_under_the_usual_names() -> None:
    facts = told(ROOT, ENGINE)
    assert facts.samples("process_") == {
        "process_virtual_memory_bytes": 1 << 30,
        "process_resident_memory_bytes": 1 << 20,
        "process_start_time_seconds": 1.7e9,
        "process_cpu_seconds_total": 2.5,
        "process_open_fds": 12,
        "process_max_fds": 1024,
    }


def test_only_the_root_process_tells_of_its_garbage() -> None:
    facts = told(ROOT, ENGINE)
    sampled = GarbageSampled(0, facts.later(), [30, 3, 1], [200, 20, 2], [0, 0, 0])
    facts.tell(Source("APIServer_0", ROOT.pid, 1, ""), sampled)
    facts.tell(Source("APIServer_1", 999, 2, ""), sampled._replace(num_collections=[7, 7, 7]))
    found = facts.samples("python_gc")
    assert [found[f"python_gc_collections_total{{generation={number}}}"] for number in range(3)] == [30, 3, 1]
    assert found["python_gc_objects_collected_total{generation=0}"] == 200
    assert found.get("python_gc_objects_uncollectable_total{generation=2}", 0) == 0


def test_for_a_launcher_the_first_api_server_tells_of_its_garbage() -> None:
    facts = told(ROOT, ENGINE)
    facts.view._processes.seen("Launcher", ROOT.pid)
    sampled = GarbageSampled(0, facts.later(), [30, 3, 1], [200, 20, 2], [0, 0, 0])
    facts.tell(Source("APIServer_0", 998, 1, ""), sampled)
    facts.tell(Source("APIServer_1", 999, 2, ""), sampled._replace(client_index=1, num_collections=[90, 9, 9]))
    found = facts.samples("python_gc_collections")
    assert [found[f"python_gc_collections_total{{generation={number}}}"] for number in range(3)] == [30, 3, 1]


def test_a_first_api_server_that_is_replaced_goes_on_with_the_count_of_garbage() -> None:
    facts = told(ROOT, ENGINE)
    facts.view._processes.seen("Launcher", ROOT.pid)
    sampled = GarbageSampled(0, facts.later(), [30, 3, 1], [200, 20, 2], [0, 0, 0])
    facts.tell(Source("APIServer_0", 998, 1, ""), sampled)
    again = Source("APIServer_0", 997, 3, "")
    facts.tell(again, sampled._replace(num_collections=[5, 1, 0], num_collected=[40, 4, 0]))
    resumed = facts.new_view(root_pid=ROOT.pid)
    resumed.restore(facts.view.state())
    facts.state.add_view(resumed)
    facts.tell(again, sampled._replace(num_collections=[6, 1, 0], num_collected=[50, 4, 0]))
    for view in (facts.view, resumed):
        found = facts.samples("python_gc", view=view)
        assert [found[f"python_gc_collections_total{{generation={number}}}"] for number in range(3)] == [36, 4, 1]
        assert found["python_gc_objects_collected_total{generation=0}"] == 250


def test_every_process_is_shown_by_role_and_rank() -> None:
    facts = told(ROOT, ENGINE)
    assert facts.samples("vllm_obs_process") == {
        "vllm_obs_process_cpu_seconds_total{rank=0,role=APIServer}": 2.5,
        "vllm_obs_process_cpu_seconds_total{rank=DP0,role=EngineCore}": 40,
        "vllm_obs_process_resident_memory_bytes{rank=0,role=APIServer}": 1 << 20,
        "vllm_obs_process_resident_memory_bytes{rank=DP0,role=EngineCore}": 1 << 21,
        "vllm_obs_process_open_fds{rank=0,role=APIServer}": 12,
        "vllm_obs_process_open_fds{rank=DP0,role=EngineCore}": 20,
        "vllm_obs_process_threads{rank=0,role=APIServer}": 7,
        "vllm_obs_process_threads{rank=DP0,role=EngineCore}": 9,
    }


def test_a_replaced_process_goes_on_with_its_roles_cpu_time() -> None:
    facts = told(ROOT, ENGINE)
    facts.text()
    facts.processes.by_pid = {201: ENGINE._replace(pid=201, cpu_seconds=3.0)}
    facts.tell(Source("EngineCore_DP0", 201, 3, "0"), DESCRIBED)
    samples = facts.samples("vllm_obs_process_cpu", "vllm_obs_process_threads", "process_cpu")
    assert samples == {
        "process_cpu_seconds_total": 2.5,
        "vllm_obs_process_cpu_seconds_total{rank=0,role=APIServer}": 2.5,
        "vllm_obs_process_cpu_seconds_total{rank=DP0,role=EngineCore}": 43,
        "vllm_obs_process_threads{rank=DP0,role=EngineCore}": 9,
    }


def test_a_process_that_cannot_be_looked_at_keeps_its_numbers() -> None:
    facts = told(ROOT, ENGINE)
    before = facts.samples("vllm_obs_process")
    facts.processes.unreadable = {ENGINE.pid}
    assert facts.samples("vllm_obs_process") == before
    facts.processes.unreadable = set()
    facts.processes.by_pid[ENGINE.pid] = ENGINE._replace(cpu_seconds=41.0)
    cpu_seconds = "vllm_obs_process_cpu_seconds_total{rank=DP0,role=EngineCore}"
    assert facts.samples("vllm_obs_process") == before | {cpu_seconds: 41.0}


def test_a_pid_that_came_back_is_another_process() -> None:
    facts = told(ROOT, ENGINE)
    facts.text()
    facts.processes.by_pid[ENGINE.pid] = ENGINE._replace(started_ticks=9000, cpu_seconds=500.0)
    samples = facts.samples("vllm_obs_process_cpu")
    assert samples["vllm_obs_process_cpu_seconds_total{rank=DP0,role=EngineCore}"] == 40


def test_cpu_time_is_not_counted_twice_after_a_restart_of_the_observer() -> None:
    facts = told(ROOT, ENGINE)
    facts.text()
    resumed = facts.new_view(root_pid=ROOT.pid)
    resumed.restore(facts.view.state())
    facts.processes.by_pid[ENGINE.pid] = ENGINE._replace(cpu_seconds=41.0)
    samples = facts.samples("vllm_obs_process_cpu", view=resumed)
    assert samples["vllm_obs_process_cpu_seconds_total{rank=DP0,role=EngineCore}"] == 41


def test_a_replay_reads_no_process() -> None:
    facts = MetricFacts()
    facts.processes.by_pid = {ROOT.pid: ROOT}
    facts.end_http()
    assert facts.samples("process_", "vllm_obs_process") == {}


def test_processes_have_a_bound() -> None:
    facts = told()
    for number in range(2 * MAX_PROCESSES):
        facts.view._processes.seen("Worker_TP0", number)
    assert len(facts.view._processes._processes) == MAX_PROCESSES


def test_roles_name_their_rank() -> None:
    roles = ("APIServer_0", "EngineCore_DP1", "Worker_DP0_TP1", "Observer")
    assert [split_role(role) for role in roles] == [
        ("APIServer", "0"),
        ("EngineCore", "DP1"),
        ("Worker", "DP0_TP1"),
        ("Observer", ""),
    ]


def test_the_kernel_tells_of_this_process() -> None:
    reader = ProcessReader()
    numbers = reader.read(os.getpid())
    assert numbers is not None
    assert numbers.pid == os.getpid()
    assert numbers.cpu_seconds > 0
    assert 0 < numbers.resident_bytes < numbers.virtual_bytes
    assert numbers.num_threads >= 1
    assert numbers.num_fds >= 3
    assert reader.max_fds(os.getpid()) >= numbers.num_fds
    assert reader.started_at(numbers) > 1.6e9


def test_a_process_that_ended_is_gone_reaped_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessReader().read(child.pid) is None
    child.wait()
    assert ProcessReader().read(child.pid) is None


def test_no_proc_is_no_numbers(tmp_path: Path) -> None:
    reader = ProcessReader(tmp_path)
    assert reader.read(1) is None
    assert reader.max_fds(1) == 0
    assert reader.started_at(ROOT) == 0


def test_only_a_process_that_is_not_there_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessReader().is_gone(child.pid)
    child.wait()
    assert ProcessReader().is_gone(child.pid)
    assert not ProcessReader().is_gone(os.getpid())
    unreadable = tmp_path / "7" / "stat"
    unreadable.parent.mkdir()
    unreadable.symlink_to(unreadable)
    reader = ProcessReader(tmp_path)
    assert (reader.read(7), reader.is_gone(7), reader.is_gone(8)) == (None, False, True)


def test_a_process_whose_files_may_not_be_listed_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(Path("/proc/self/stat").read_text())
    numbers = ProcessReader(tmp_path).read(7)
    assert numbers is not None
    assert (numbers.num_fds, numbers.num_threads >= 1) == (0, True)
