"""A client of an engine dies and another takes its place: what the old one ran ends, unheard by the new one."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from fake_executor import expected_output, make_request, tiny_config

from vllm_obs.engine.engine_process import EngineProcess
from vllm_obs.engine.engine_sockets import EngineSockets, Route
from vllm_obs.engine.messages import EngineCoreOutputs, UtilityCall
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.sockets import receive_frames
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessExited

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

FOREVER = 40_000
"""More tokens than a fake model makes in the time of a test."""


class Client:
    """One client's ends of the sockets, in one of its lives."""

    def __init__(self, process: EngineProcess, client_index: int, life: int = 0) -> None:
        self.index = client_index
        self.sockets = EngineSockets(
            Route(client_index, client_life=life), process.config.run_dir, MemoryRecorder()
        )
        self.sockets.listen(process.pid)

    def wait_connected(self) -> None:
        deadline = time.monotonic() + 20
        while not self.sockets.look():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        self.sockets.take_names_away()

    def add(self, request_id: str, max_tokens: int) -> None:
        request = make_request(request_id, [1, 2, 3], max_tokens, client_index=self.index)
        self.sockets.send(FrameEncoder().request(request))

    def outputs(self, seconds: float = 20.0) -> EngineCoreOutputs:
        assert self.sockets.outputs.poll(1e3 * seconds, zmq.POLLIN), "no outputs"
        outputs = self.sockets.receive(receive_frames(self.sockets.outputs))
        assert outputs is not None
        return outputs

    def run(self, request_id: str) -> list[int]:
        """The tokens of a request, which is the only one heard of."""
        tokens: list[int] = []
        while True:
            outputs = self.outputs()
            assert outputs.request_ids == [request_id]
            tokens += outputs.new_token_ids
            if outputs.finish_reasons[0] >= 0:
                return tokens

    def call(self, method: str) -> Any:
        """The answer to a utility call, with what comes before left out."""
        self.sockets.send(FrameEncoder().request(UtilityCall(self.index, 0, 1, method, [])))
        while (answer := self.outputs().utility) is None:
            pass
        return answer.value


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    """An engine over the fake executor that has two clients, whose blocks last for the time of a test."""
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "fake_execute=delay:0.05")
    with RunDirectory.create() as directory:
        config = replace(tiny_config(), run_dir=str(directory.path))
        made = EngineProcess(config, MemoryRecorder(), [0, 0], "fake_engine_process")
        yield made
        made.close()


@pytest.fixture
def clients(process: EngineProcess) -> Iterator[list[Client]]:
    made = [Client(process, 0), Client(process, 1)]
    for client in made:
        client.wait_connected()
    yield made
    for client in made:
        client.sockets.close()


def test_what_a_dead_client_ran_ends_and_the_other_goes_on(process: EngineProcess, clients: list[Client]) -> None:
    first, second = clients
    first.add("mine", FOREVER)
    second.add("its", FOREVER)
    second.outputs()
    second.sockets.close()
    process.replace_client(1)
    deadline = time.monotonic() + 10
    while first.call("ping") is None or _num_live(first) != 1:
        assert time.monotonic() < deadline
    assert first.outputs().request_ids == ["mine"]


def _num_live(client: Client) -> int:
    stats = None
    while stats is None:
        stats = client.outputs().stats
    return stats.num_running + stats.num_waiting


def test_the_new_client_hears_nothing_of_the_old_ones_requests(
    process: EngineProcess, clients: list[Client]
) -> None:
    old = clients[1]
    for index in range(5):
        old.add(f"old-{index}", FOREVER)
    old.outputs()
    old.sockets.close()
    process.replace_client(1)
    new = Client(process, 1, life=1)
    new.wait_connected()
    new.add("new", 4)
    assert new.run("new") == expected_output([1, 2, 3], 4)
    new.sockets.close()


def test_a_client_may_be_replaced_before_the_engine_is_there_and_again(process: EngineProcess) -> None:
    process.replace_client(1)
    process.replace_client(1)
    new = Client(process, 1, life=2)
    new.wait_connected()
    new.add("new", 3)
    assert new.run("new") == expected_output([1, 2, 3], 3)
    new.sockets.close()


def test_the_next_engine_knows_the_lives_of_its_clients(process: EngineProcess) -> None:
    process.replace_client(1)
    process.close(0)
    following = process.successor()
    try:
        assert Path(following._endpoints(1)[0]).name == "in1.1-0-1.sock"
        assert Path(following._endpoints(0)[0]).name == "in0-0-1.sock"
    finally:
        following.close(0)
    assert not process._recorder.of(ProcessExited), "whoever owns it records its end"  # type: ignore[attr-defined]
