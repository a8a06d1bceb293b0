"""A live engine process over the fake executor: it serves, drops what is bad, sleeps when idle, dies whole."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from bad_frames import BAD_FRAMES
from engine_peer import GENERATION, EnginePeer
from fake_executor import expected_output
from process_watch import cpu_seconds, gone

from vllm_obs.engine.errors import ConfigError, EngineDeadError, StartupError
from vllm_obs.engine.messages import FinishReason, UtilityCall
from vllm_obs.engine.sockets import make_socket, socket_endpoint
from vllm_obs.engine.wire import FrameEncoder
from vllm_obs.telemetry.records import FrameDropped

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")


@pytest.fixture
def peer() -> Iterator[EnginePeer]:
    """A fresh engine and its client."""
    made = EnginePeer()
    yield made
    made.close()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> "PlantFaults":
    """Plants faults for the processes started afterwards."""
    return PlantFaults(monkeypatch)


class PlantFaults:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, text: str) -> None:
        self._monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
        self._monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", text)


def test_ready_carries_the_facts_of_the_engine(peer: EnginePeer) -> None:
    assert peer.facts.pid == peer.link.child.pid
    assert (peer.facts.num_gpu_blocks, peer.facts.block_size, peer.facts.model) == (64, 4, "fake")
    assert [name for name, _ in peer.facts.phases] == ["start process", "load"]
    assert all(0.0 < seconds < 60.0 for _, seconds in peer.facts.phases)


def test_requests_are_served_together_and_in_full(peer: EnginePeer) -> None:
    prompts = {f"r{index}": list(range(index, index + 5)) for index in range(6)}
    for request_id, prompt in prompts.items():
        peer.add(request_id, prompt, max_tokens=7)
    expected = {name: (expected_output(prompt, 7), FinishReason.LENGTH) for name, prompt in prompts.items()}
    assert peer.run(set(prompts)) == expected


def test_an_out_of_bounds_request_is_answered_with_an_error(peer: EnginePeer) -> None:
    peer.add("bad", [10**6])
    outputs = peer.outputs()
    assert outputs.request_ids == ["bad"]
    assert outputs.finish_reasons == [FinishReason.ERROR]
    assert outputs.errors[0][:2] == (0, "invalid_value")
    assert outputs.sent_at > 0


def test_utility_calls_are_answered_with_a_value_or_an_error(peer: EnginePeer) -> None:
    for call_id, (method, args) in enumerate([("ping", []), ("no_such", []), ("ping", [1, 2])]):
        peer.send(UtilityCall(0, GENERATION, call_id, method, args))
    results = [peer.outputs().utility for _ in range(3)]
    assert [result and (result.call_id, result.value) for result in results] == [(0, "pong"), (1, None), (2, None)]
    assert results[1] is not None
    assert "no_such" in results[1].error


def test_bad_frames_are_dropped_counted_by_reason_and_harm_nobody(peer: EnginePeer) -> None:
    peer.add("good", [1, 2, 3], max_tokens=30)
    sent = Counter[str]()
    for reason, frames in BAD_FRAMES.values():
        if frames:
            peer.send_frames(frames)
            sent[reason] += 1
    assert peer.run({"good"}, ignoring=frozenset({"r-1"}))["good"] == (
        expected_output([1, 2, 3], 30),
        FinishReason.LENGTH,
    )
    assert peer.dropped_frames() == sent


def test_a_request_that_cannot_be_read_is_failed_to_its_owner(peer: EnginePeer) -> None:
    peer.send_frames(BAD_FRAMES["temperature NaN"][1])
    outputs = peer.outputs()
    assert (outputs.request_ids, outputs.finish_reasons) == (["r-1"], [FinishReason.ERROR])
    assert outputs.generation == GENERATION


def test_repeated_and_late_messages_change_nothing(peer: EnginePeer) -> None:
    peer.abort("unknown")
    peer.pause()
    peer.add("a", [1, 2, 3], max_tokens=20)
    peer.add("a", [9, 9, 9], max_tokens=3)
    peer.resume()
    assert peer.run({"a"}) == {"a": (expected_output([1, 2, 3], 20), FinishReason.LENGTH)}
    peer.abort("a")
    peer.pause()
    peer.add("b", [1, 2, 3], max_tokens=40)
    peer.abort("b")
    peer.abort("b", "b")
    assert peer.run({"b"})["b"][1] == FinishReason.ABORT
    peer.resume()
    peer.add("b", [4, 5], max_tokens=3)
    assert peer.run({"b"}) == {"b": (expected_output([4, 5], 3), FinishReason.LENGTH)}
    assert peer.ping() == []


def test_messages_of_another_generation_or_client_are_dropped(peer: EnginePeer) -> None:
    peer.add("old", generation=GENERATION - 1)
    peer.add("other", client_index=1)
    assert peer.ping() == []
    assert peer.dropped_frames() == {"generation": 1, "client": 1}


def test_what_strangers_send_as_outputs_is_dropped_and_counted(peer: EnginePeer) -> None:
    peer.add("a", [1, 2])
    sample = peer.outputs()
    peer.run({"a"})
    encoder = FrameEncoder()
    door = socket_endpoint(peer.link.config.run_dir, "door")  # the engine's own has no name any more
    peer.link.outputs.set(zmq.IPC_FILTER_PID, os.getpid())  # only the engine is let in
    peer.link.outputs.bind(door)
    with zmq.Context() as context, make_socket(context, zmq.PUSH) as stranger:
        stranger.connect(door)
        stranger.send_multipart(encoder.outputs(sample._replace(generation=GENERATION - 1)))
        stranger.send_multipart(encoder.outputs(sample._replace(client_index=1)))
        stranger.send_multipart(encoder.outputs(sample._replace(engine_index=1)))
        stranger.send_multipart(encoder.outputs(sample._replace(finish_reasons=[77])))
        stranger.send_multipart([b"\x00", b"\xc1"])
        stranger.send_multipart([b"x"])
        deadline = time.monotonic() + 20
        while sum(peer.link.num_dropped.values()) < 6 and time.monotonic() < deadline:
            peer.ping()
    assert peer.link.num_dropped == {"generation": 1, "client": 2, "type": 1, "decode": 1, "parts": 1}
    assert len(peer.recorder.of(FrameDropped)) == 6


def test_an_idle_engine_sleeps(peer: EnginePeer) -> None:
    peer.add("a", [1, 2])
    peer.run({"a"})
    peer.ping()
    before = cpu_seconds(peer.facts.pid)
    time.sleep(1.0)
    assert cpu_seconds(peer.facts.pid) - before < 0.1


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("engine_input", "the engine input thread died: InjectedFaultError"),
        ("engine_output", "(the engine output 0 thread died: )?InjectedFaultError"),
        ("engine_step", "InjectedFaultError: planted at engine_step"),
    ],
)
def test_the_death_of_any_thread_is_the_death_of_the_engine(faults: PlantFaults, site: str, words: str) -> None:
    faults(f"{site}=raise")
    peer = EnginePeer()
    try:
        begun = time.monotonic()
        with pytest.raises(EngineDeadError, match=f"EngineCore_DP0 exited with code 70: {words}"):
            peer.serve("a")
        assert time.monotonic() - begun < 3.0
        assert peer.link.child.exit_code == 70
        with pytest.raises(EngineDeadError):
            peer.add("b")
    finally:
        peer.close()


def test_a_failing_step_fails_its_batch_and_the_engine_goes_on(faults: PlantFaults) -> None:
    faults("fake_execute=raise:poison")
    peer = EnginePeer()
    try:
        peer.add("poison")
        assert peer.run({"poison"}) == {"poison": ([], FinishReason.ERROR)}
        peer.add("a", [1, 2], max_tokens=3)
        assert peer.run({"a"}) == {"a": (expected_output([1, 2], 3), FinishReason.LENGTH)}
    finally:
        peer.close()


def test_a_fault_at_the_start_is_told_as_the_cause(faults: PlantFaults) -> None:
    faults("engine_start=raise")
    with pytest.raises(StartupError, match="planted at engine_start") as failure:
        EnginePeer()
    assert failure.value.exit_code == 70


def test_a_run_directory_too_deep_for_sockets_is_a_configuration_error(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(run_base / ("x" * 100)))
    with pytest.raises(ConfigError, match="the limit is 107"):
        EnginePeer()


def test_a_killed_engine_is_seen_within_a_second_and_named(peer: EnginePeer) -> None:
    peer.add("a", max_tokens=60)
    peer.outputs()
    os.kill(peer.facts.pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(EngineDeadError, match="EngineCore_DP0 was killed by SIGKILL"):
        peer.run({"a"} | {"never"})
    assert time.monotonic() - begun < 3.0


def test_the_end_leaves_no_process_and_no_socket(run_base: Path) -> None:
    peer = EnginePeer()
    assert list(run_base.glob("*/*.sock")) == []  # a killed owner could not remove them
    peer.close()
    assert peer.link.child.exit_code == 0
    assert gone(peer.facts.pid, 1.0)
    assert list(run_base.glob("*/*.sock")) == []


def test_the_engine_ends_when_its_owner_is_killed() -> None:
    script = (
        "import time; from engine_peer import EnginePeer\n"
        "peer = EnginePeer(); peer.add('a', max_tokens=60); print(peer.facts.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
        assert gone(pid, 6.0)
