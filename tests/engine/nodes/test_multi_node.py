"""The executor over several hosts, the second one played by an agent on this host."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_process import KEY, AgentProcess, cluster_config
from fake_executor import FakeExecutor, make_request
from process_watch import gone

from vllm_obs.engine.config import ObservabilityConfig, VllmConfig
from vllm_obs.engine.errors import ConfigError, EngineDeadError, StartupError
from vllm_obs.engine.executor.commands import WorkerStepError
from vllm_obs.engine.executor.factory import make_executor
from vllm_obs.engine.executor.multi_node import MultiNodeExecutor
from vllm_obs.engine.nodes import remote_nodes
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.telemetry.recorder import NullRecorder

pytestmark = pytest.mark.usefixtures("child_modules")

FAKE_WORKER = "fake_worker_process"
WAIT_SECONDS = 30.0

StartAgent = Callable[..., AgentProcess]
StartHost = Callable[..., MultiNodeExecutor]


@pytest.fixture
def agent(run_base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartAgent]:
    """`agent(config, node_rank)` starts one; all are ended, and have left no process."""
    monkeypatch.setenv("VLLM_OBS_CLUSTER_KEY", KEY)
    started: list[AgentProcess] = []

    def start(config: VllmConfig, node_rank: int = 1, **env: str) -> AgentProcess:
        started.append(AgentProcess(config, run_base, node_rank, **env))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartHost]:
    """`host(config, faults)` makes host 0's executor; all are shut down."""
    made: list[MultiNodeExecutor] = []

    def start(config: VllmConfig, faults: str = "") -> MultiNodeExecutor:
        monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
        monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", faults)
        made.append(MultiNodeExecutor(config, NullRecorder(), FAKE_WORKER))
        return made[-1]

    yield start
    for executor in made:
        executor.shutdown()
        executor.shutdown()


def plan_for(request_id: str, step: int = 1, num_tokens: int = 3) -> StepPlan:
    message = make_request(request_id, list(range(1, num_tokens + 1)))
    row = NewRow(request_id, message.prompt_token_ids, num_tokens, message.sampling, [0], 0)
    return StepPlan(step, [row], [], [], [], [], [num_tokens], [])


def run(executor: MultiNodeExecutor, plan: StepPlan) -> ModelRunnerOutput:
    executed = executor.execute_model(plan)
    sampled = executor.sample_tokens(None)
    assert executed.result(WAIT_SECONDS) is None
    return sampled.result(WAIT_SECONDS)


def wait_failed(executor: MultiNodeExecutor, seconds: float) -> str:
    """The cause of its failure."""
    causes: list[str] = []
    executor.on_failure(causes.append)
    deadline = time.monotonic() + seconds
    while not causes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert causes
    return causes[0]


def test_a_plan_is_answered_as_in_this_process_and_the_agent_ends_with_the_engine(
    agent: StartAgent, host: StartHost
) -> None:
    config = cluster_config()
    other, executor = agent(config), host(config)
    assert executor.initialize().num_blocks == 31
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
    of_many_slots = StepPlan(2, [], [], [], [], [], [], [f"request-{number}" for number in range(40_000)])
    assert executor.execute_model(of_many_slots).result(WAIT_SECONDS) is None
    assert run(executor, plan_for("b", step=3)) == FakeExecutor(8).run(plan_for("b", step=3))
    assert len(other.children()) == 1
    pid = other.children()[0].pid
    executor.shutdown()
    assert other.process.wait(WAIT_SECONDS) == 0
    assert gone(pid, 1.0)


def test_the_answer_may_come_from_another_host(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    config = replace(config, parallel=replace(config.parallel, pipeline_parallel_size=2))
    agent(config)
    executor = host(config)
    executor.initialize()
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))


def test_ranks_are_spread_in_equal_runs_over_more_hosts(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config(num_nodes=3, world_size=6)
    agents = [agent(config, node_rank) for node_rank in (2, 1)]
    executor = host(config)
    capacity = executor.initialize()
    assert capacity.num_blocks == 27 - 1 + 1
    assert [len(each.children()) for each in agents] == [2, 2]
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))


def test_a_host_that_does_not_come_is_named_after_its_time(
    host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_CLUSTER_KEY", KEY)
    with pytest.raises(StartupError, match=r"Node_1 did not come within 1 s"):
        host(cluster_config(node_timeout=1.0)).initialize()


def test_without_a_key_host_0_does_not_listen(host: StartHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_OBS_CLUSTER_KEY", raising=False)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ConfigError, match="several hosts need a cluster key"):
        make_executor(cluster_config(), NullRecorder())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_host_with_another_key_is_told_and_never_let_in(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other, executor = agent(config, VLLM_OBS_CLUSTER_KEY="another secret of somebody"), host(config)
    assert other.process.wait(WAIT_SECONDS) == 78
    assert "does not take this host's cluster key" in other.log.read_text()
    assert executor._nodes.missing() == ["Node_1"]


def test_hosts_that_are_not_alike_refuse_each_other_and_say_why(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other = agent(replace(config, model=replace(config.model, dtype="bfloat16")))
    with pytest.raises(ConfigError, match=r"Node_1 \(.*\) cannot take part: model.dtype is bfloat16 there"):
        host(config).initialize()
    assert other.process.wait(WAIT_SECONDS) == 78
    assert "model.dtype is bfloat16 there and float32 here" in other.log.read_text()


def test_a_second_agent_of_the_same_rank_is_turned_away(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    agent(config)
    executor = host(config)
    executor.initialize()
    other = agent(replace(config, parallel=replace(config.parallel, node_timeout=3.0)))
    assert other.process.wait(WAIT_SECONDS) == 70
    assert re.search(r"did not take this host in 3 s: Node_1 \(.*\) is there already", other.log.read_text())
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))


def test_a_killed_agent_is_noticed_named_and_leaves_nothing(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other, executor = agent(config), host(config, "execute_0=hang")
    executor.initialize()
    pids = [child.pid for child in other.children()]
    pending = executor.execute_model(plan_for("a"))
    os.kill(other.process.pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"Node_1 was lost: .* closed the connection"):
        pending.result(WAIT_SECONDS)
    assert time.monotonic() - begun < 3.0
    assert all(gone(pid, 2.0) for pid in pids)


def test_an_agent_that_stands_still_is_lost_after_its_time(
    agent: StartAgent, host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_nodes, "SILENCE_SECONDS", 1.0)
    config = cluster_config()
    other, executor = agent(config), host(config)
    executor.initialize()
    os.kill(other.process.pid, signal.SIGSTOP)
    cause = wait_failed(executor, 3.0)
    assert cause.startswith("Node_1 was lost: ")
    assert cause.endswith("gave no sign of life for 1 s")


def test_a_killed_rank_of_another_host_is_named_with_its_host(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other, executor = agent(config), host(config)
    executor.initialize()
    os.kill(other.children()[0].pid, signal.SIGKILL)
    cause = wait_failed(executor, 3.0)
    assert cause.startswith("Worker_TP1 was killed by SIGKILL (on Node_1")


def test_a_model_that_cannot_be_used_there_is_told_in_the_workers_own_words(
    agent: StartAgent, host: StartHost
) -> None:
    config = cluster_config()
    agent(config, VLLM_OBS_TEST_HOOKS="1", VLLM_OBS_TEST_FAULTS="load_1=raise")
    with pytest.raises(ConfigError, match=r"^the model cannot be used \(on Node_1"):
        host(config).initialize()


def test_an_error_of_all_ranks_fails_its_step_and_nothing_else(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    agent(config, VLLM_OBS_TEST_HOOKS="1", VLLM_OBS_TEST_FAULTS="execute_1=raise:poison")
    executor = host(config, "execute_0=raise:poison")
    executor.initialize()
    executed, sampled = executor.execute_model(plan_for("poison")), executor.sample_tokens(None)
    for future in (executed, sampled):
        with pytest.raises(WorkerStepError, match="planted at execute_0"):
            future.result(WAIT_SECONDS)
    assert run(executor, plan_for("a", step=2)) == FakeExecutor(8).run(plan_for("a", step=2))


def test_the_agent_outlives_an_engine_and_serves_the_next(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other, executor = agent(config), host(config)
    executor.initialize()
    pid = other.children()[0].pid
    # An engine that dies closes its connection and says nothing.
    executor._is_started = False
    executor.shutdown()
    assert gone(pid, 2.0)
    following = host(replace(config, generation=1))
    following.initialize()
    assert run(following, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
    other.wait_said("connected to host 0 (engine restart 1)")


def test_an_agent_that_is_told_to_ends_with_its_ranks(agent: StartAgent, host: StartHost) -> None:
    config = cluster_config()
    other, executor = agent(config), host(config)
    executor.initialize()
    pids = [child.pid for child in other.children()]
    os.kill(other.process.pid, signal.SIGTERM)
    assert other.process.wait(6.0) == 0
    assert all(gone(pid, 1.0) for pid in pids)
    assert wait_failed(executor, 3.0).startswith("Node_1 was lost: it was told to end")


def test_an_agent_whose_host_does_not_come_ends_with_70(agent: StartAgent) -> None:
    other = agent(cluster_config(node_timeout=1.0))
    assert other.process.wait(WAIT_SECONDS) == 70
    assert "did not come within 1 s" in other.log.read_text()


def test_what_another_host_records_is_mirrored_here(agent: StartAgent, host: StartHost, tmp_path: Path) -> None:
    config = cluster_config()
    config = replace(config, run_dir=str(tmp_path), observability=ObservabilityConfig(recorder="ring"))
    agent(config)
    executor = host(config)
    executor.initialize()
    run(executor, plan_for("a"))
    wanted = {"Node_1@Node_1.ring", "Worker_TP1@Node_1.ring"}
    deadline = time.monotonic() + WAIT_SECONDS
    while not wanted <= {path.name for path in tmp_path.glob("*.ring")}:
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.05)
