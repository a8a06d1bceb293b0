"""What the launcher sums up of its API servers: how they ended, and what they have open in each engine."""

from types import SimpleNamespace
from typing import Any

from fake_executor import tiny_config
from in_loop import in_loop

from vllm_obs.server.api_server_place import ServedBy
from vllm_obs.server.api_servers import ApiServers
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher_messages import ServerStatus
from vllm_obs.telemetry.recorder import NullRecorder

KILLED = -9


def servers(*places: Any) -> ApiServers:
    made = ApiServers(ServedBy(tiny_config(), ServerConfig(), NullRecorder(), None), 0, lambda index: None)  # type: ignore[arg-type]
    made.places = list(places)
    return made


def place(exit_code: int | None = None, is_ready: bool = True, **sequences: int) -> Any:
    told = [(int(name.removeprefix("engine_")), number) for name, number in sequences.items()]
    status = ServerStatus("ready", 0, 0, 1, told)
    is_running = exit_code is None
    child = SimpleNamespace(exit_code=exit_code)
    return SimpleNamespace(child=child, is_ready=is_ready and is_running, is_running=is_running, status=status)


@in_loop
async def test_one_that_died_before_the_drain_or_was_not_ready_is_no_cut_off() -> None:
    died_before, serves, loads = place(exit_code=KILLED), place(), place(is_ready=False)
    made = servers(died_before, serves, loads)
    made.stop_keeping()
    serves.child.exit_code, serves.is_ready, serves.is_running = 0, False, False
    loads.child.exit_code = KILLED
    made.stop_keeping()
    assert made.exit_codes == [0]


@in_loop
async def test_one_that_dies_while_it_drains_counts() -> None:
    serves = place()
    made = servers(serves)
    made.stop_keeping()
    serves.child.exit_code = KILLED
    assert made.exit_codes == [KILLED]


@in_loop
async def test_sequences_are_counted_of_each_engine_for_itself() -> None:
    made = servers(place(engine_0=2, engine_1=3), place(engine_1=4), place(exit_code=KILLED, engine_0=100))
    assert [made.num_sequences(index) for index in range(3)] == [2, 7, 0]
