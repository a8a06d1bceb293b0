"""The executor over Ray, with a cluster that is a fake: places, order, deaths by name, and nothing left."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from fake_executor import FakeExecutor, make_request, tiny_config
from fake_ray import FakeActor, FakeRay

from vllm_obs.engine.config import ObservabilityConfig, ParallelConfig
from vllm_obs.engine.errors import ConfigError, EngineDeadError, StartupError
from vllm_obs.engine.executor import ray_executor, ray_news, ray_port, ray_rank, ray_records
from vllm_obs.engine.executor.ray_executor import RayExecutor
from vllm_obs.engine.executor.ray_port import RealRay, within
from vllm_obs.engine.nodes import node_messages
from vllm_obs.engine.nodes.node_messages import NodeFailed, RankSaid
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.telemetry.recorder import NullRecorder
from vllm_obs.telemetry.ring_reader import RingReader

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

FAKE_WORKER = "fake_worker_process"
WAIT_SECONDS = 30.0
PARALLEL = ParallelConfig("ray", 2, node_timeout=5.0)

Start = Callable[..., RayExecutor]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(ray, parallel, generation)` makes an executor; all are shut down, and leave no actor and no place."""
    monkeypatch.setattr(ray_rank, "ray_node", lambda: ("127.0.0.1", "node-a"))
    made: list[tuple[RayExecutor, FakeRay]] = []

    def make(
        ray: FakeRay, parallel: ParallelConfig = PARALLEL, run_dir: str = "", generation: int = 0
    ) -> RayExecutor:
        observability = ObservabilityConfig(recorder="ring")
        config = replace(
            tiny_config(), parallel=parallel, run_dir=run_dir, generation=generation, observability=observability
        )
        made.append((RayExecutor(config, NullRecorder(), ray, FAKE_WORKER), ray))
        return made[-1][0]

    yield make
    for executor, ray in made:
        executor.shutdown()
        executor.shutdown()
        assert all(actor.is_dead for actor in (*ray.actors, *ray.observers))
        assert ray.removed == list(range(len(ray.groups)))
        assert not ray.is_connected


def plan_for(request_id: str, step: int = 1) -> StepPlan:
    message = make_request(request_id, [1, 2, 3])
    row = NewRow(request_id, message.prompt_token_ids, 3, message.sampling, [0], 0)
    return StepPlan(step, [row], [], [], [], [], [3], [])


def run(executor: RayExecutor, plan: StepPlan) -> ModelRunnerOutput:
    executed = executor.execute_model(plan)
    sampled = executor.sample_tokens(None)
    assert executed.result(WAIT_SECONDS) is None
    return sampled.result(WAIT_SECONDS)


def wait_for(causes: list[str]) -> None:
    deadline = time.monotonic() + 6.0
    while not causes and time.monotonic() < deadline:
        time.sleep(0.02)
    assert causes


def test_a_plan_is_answered_as_in_this_process(start: Start) -> None:
    ray = FakeRay()
    executor = start(ray)
    assert executor.initialize().num_blocks == 31
    expected = FakeExecutor(8).run(plan_for("a"))
    assert run(executor, plan_for("a")) == expected
    release = StepPlan(2, [], [], [], [], [], [], ["a"])
    assert executor.execute_model(release).result(WAIT_SECONDS) is None
    assert run(executor, plan_for("a", step=3)) == expected._replace(step=3)


def test_shards_of_a_stage_share_a_host_where_one_is_large_enough(start: Start) -> None:
    parallel = replace(PARALLEL, world_size=4, tensor_parallel_size=2, pipeline_parallel_size=2)
    for num_on_one_host, is_one_host in ((2, True), (1, False)):
        ray = FakeRay(num_cpus=4, num_on_one_host=num_on_one_host)
        start(ray, parallel).initialize()
        assert ray.groups == [(2, is_one_host)] * 2
        assert [actor.place for actor in ray.actors] == [
            (0, 0, "CPU"),
            (0, 1, "CPU"),
            (1, 0, "CPU"),
            (1, 1, "CPU"),
        ]


def test_more_places_than_the_cluster_has_are_refused_at_once_with_the_numbers(start: Start) -> None:
    with pytest.raises(StartupError, match=r"2 CPUs of Ray are wanted.*it has 1, of which 1 are free: more than"):
        start(FakeRay(num_cpus=1)).initialize()


def test_places_that_do_not_come_free_are_told_with_the_numbers(start: Start) -> None:
    parallel = replace(PARALLEL, node_timeout=1.0)
    with pytest.raises(StartupError, match=r"it has 4, of which 0 are free: not there within 1 s"):
        start(FakeRay(num_free=0), parallel).initialize()


def test_after_a_failure_a_host_that_is_gone_may_come_back(start: Start) -> None:
    ray = FakeRay(num_cpus=1)
    executor = start(ray, generation=1)
    ray.num_free = 2
    assert executor.initialize().num_blocks == 31


def test_another_version_on_a_host_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ray_rank.Whereabouts("10.0.0.2", "host-b", 1, "0.0.1", 1, "node-b")
    monkeypatch.setattr(ray_rank.RayRank, "where", lambda self: tuple(where))
    with pytest.raises(ConfigError, match=r"host-b has vllm-obs 0.0.1"):
        start(FakeRay()).initialize()


def test_an_actor_that_dies_is_named_with_its_host(start: Start) -> None:
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    causes: list[str] = []
    executor.on_failure(causes.append)
    ray.actors[1].kill()
    wait_for(causes)
    assert len(causes) == 1
    with pytest.raises(EngineDeadError, match=r"Worker_TP1 was lost: its Ray actor on .* \(127.0.0.1\) is gone"):
        executor.execute_model(plan_for("a")).result(WAIT_SECONDS)


def test_an_actor_that_is_silent_is_lost_after_its_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_news, "SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(ray_executor, "STOP_SECONDS", 0.2)
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    causes: list[str] = []
    executor.on_failure(causes.append)
    ray.actors[0].is_silent = True
    wait_for(causes)
    assert causes[0].endswith("gave no sign of life for 1.5 s")


def test_a_rank_that_dies_below_its_actor_is_named(start: Start) -> None:
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    causes: list[str] = []
    executor.on_failure(causes.append)
    os.kill(ray.actors[1].object._ranks.children[1].pid, signal.SIGKILL)
    wait_for(causes)
    assert causes[0].startswith("Worker_TP1 was killed by SIGKILL (on ")


def test_ranks_are_told_to_end_before_their_actors_are_ended(start: Start) -> None:
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    executor.shutdown()
    assert [actor.calls.count("stop") for actor in ray.actors] == [1, 1]
    assert all(actor.object._directory._lock_fd < 0 for actor in ray.actors)


def test_actors_that_do_not_end_their_ranks_are_ended_after_their_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "STOP_SECONDS", 0.2)
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    for actor in ray.actors:
        actor.is_silent = True
    executor.shutdown()
    assert all(actor.is_dead for actor in ray.actors)


def test_a_command_that_ray_does_not_take_fails_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    executor = start(ray)
    executor.initialize()
    call = ray.call

    def refuse(actor: FakeActor, method: str, *arguments: object) -> object:
        if method == "command":
            raise RuntimeError("the cluster is busy")
        return call(actor, method, *arguments)

    monkeypatch.setattr(ray, "call", refuse)
    with pytest.raises(RuntimeError, match="the cluster is busy"):
        executor.execute_model(plan_for("a")).result(0)
    monkeypatch.setattr(ray, "call", call)
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))


def test_words_of_a_rank_that_nobody_asks_for_are_told_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_rank, "MAX_NEWS", 2)
    monkeypatch.setattr(ray_rank, "SAY_SECONDS", 0.05)
    rank = ray_rank.RayRank(1)
    for number in range(4):
        rank._say(RankSaid(1, "LOADED", number))
    messages = [node_messages.decode(frames)[0] for frames in rank.news(0.1)[1]]
    assert messages == [
        RankSaid(1, "LOADED", 0),
        RankSaid(1, "LOADED", 1),
        NodeFailed("nobody asked rank 1 for its 2 messages in 0.05 s", 70),
    ]


def test_commands_out_of_order_are_noticed() -> None:
    rank = ray_rank.RayRank(0)
    rank.command(2, b"")
    _, news, _ = rank.news(0.1)
    assert len(news) == 1
    assert b"command 2 came in the place of command 1" in b"".join(news[0])


def recorded(run_dir: Path) -> dict[str, int]:
    """The last step that each ring tells of."""
    found: dict[str, int] = {}
    for path in run_dir.glob("*.ring"):
        with RingReader(path) as reader:
            found[path.name] = reader.header().step
    return found


def wait_recorded(run_dir: Path, wanted: dict[str, int]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while recorded(run_dir) != wanted:
        assert time.monotonic() < deadline, recorded(run_dir)
        time.sleep(0.05)


def test_one_observer_on_a_host_takes_what_all_its_ranks_record(start: Start, tmp_path: Path) -> None:
    ray = FakeRay()
    executor = start(ray, run_dir=str(tmp_path))
    executor.initialize()
    assert [observer.place for observer in ray.observers] == ["node-a"]
    run(executor, plan_for("a"))
    wait_recorded(tmp_path, {f"Worker_TP{rank}@127.0.0.1.ring": 1 for rank in range(2)})


def test_hosts_of_one_address_are_told_apart(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = iter(["node-a", "node-b"])
    monkeypatch.setattr(ray_rank, "ray_node", lambda: ("127.0.0.1", next(nodes)))
    ray = FakeRay()
    executor = start(ray, run_dir=str(tmp_path))
    executor.initialize()
    assert sorted(observer.place for observer in ray.observers) == ["node-a", "node-b"]
    run(executor, plan_for("a"))
    deadline = time.monotonic() + WAIT_SECONDS
    while len(names := {path.name for path in tmp_path.glob("*.ring")}) < 2:
        assert time.monotonic() < deadline, names
        time.sleep(0.05)
    assert {name.partition("@")[2] for name in names} == {"127.0.0.1.0.ring", "127.0.0.1.1.ring"}


def test_what_a_rank_recorded_of_its_end_is_taken_too(start: Start, tmp_path: Path) -> None:
    executor = start(FakeRay(), run_dir=str(tmp_path))
    executor.initialize()
    run(executor, plan_for("a"))
    run(executor, plan_for("b", step=2))
    executor.shutdown()
    wanted = {f"Worker_TP{rank}@127.0.0.1.ring": 2 for rank in range(2)}
    assert recorded(tmp_path) == wanted


def test_an_observer_that_is_started_again_begins_as_it_did_and_nothing_comes_twice(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_records, "RETRY_SECONDS", 0.1)
    ray = FakeRay()
    executor = start(ray, run_dir=str(tmp_path))
    executor.initialize()
    run(executor, plan_for("a"))
    wait_recorded(tmp_path, {f"Worker_TP{rank}@127.0.0.1.ring": 1 for rank in range(2)})
    observer = ray.observers[0]
    observer.kill()
    run(executor, plan_for("b", step=2))
    observer.start_again()
    wait_recorded(tmp_path, {f"Worker_TP{rank}@127.0.0.1.ring": 2 for rank in range(2)})


def test_where_no_observer_can_be_started_tokens_are_made_all_the_same(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = FakeRay()

    def refuse(*_: object) -> FakeActor:
        raise ValueError("no such node")

    monkeypatch.setattr(ray, "observer", refuse)
    executor = start(ray, run_dir=str(tmp_path))
    executor.initialize()
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
    assert "what is recorded on 127.0.0.1 is left out: ValueError" in caplog.text


def test_an_observer_that_ends_for_good_takes_nothing_with_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_records, "RETRY_SECONDS", 0.0)
    ray = FakeRay()
    executor = start(ray, run_dir=str(tmp_path))
    executor.initialize()
    ray.observers[0].kill()
    deadline = time.monotonic() + WAIT_SECONDS
    while "left out from now on" not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.05)
    assert run(executor, plan_for("a")) == FakeExecutor(8).run(plan_for("a"))
    assert caplog.text.count("the observer of the ranks on 127.0.0.1 gives no records") == 2


class TestRealRay:
    """What is said where there is no Ray, or no cluster."""

    def test_without_ray_it_is_said_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(ConfigError, match=r"needs Ray: pip install 'vllm-obs\[ray\]'"):
            RealRay().connect()

    def test_without_a_cluster_it_is_said_how_to_start_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def init(address: str, **_: object) -> None:
            raise ConnectionError(f"Could not find any running Ray instance at {address}.\nmore")

        module = ModuleType("ray")
        module.is_initialized = lambda: False  # type: ignore[attr-defined]
        module.init = init  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with pytest.raises(
            StartupError, match=r"no Ray cluster is reached at auto: .*instance at auto\.; start one"
        ):
            RealRay().connect()

    def test_a_cluster_that_does_not_answer_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("ray")
        module.is_initialized = lambda: False  # type: ignore[attr-defined]
        module.init = lambda **_: time.sleep(1.0)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setattr(ray_port, "CONNECT_SECONDS", 0.2)
        with pytest.raises(StartupError, match=r"did not answer within 0.2 s"):
            RealRay().connect()
        time.sleep(1.0)

    def test_what_is_done_within_its_time_gives_its_result_or_its_error(self) -> None:
        assert within(5.0, lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            within(5.0, lambda: 1 // 0)
