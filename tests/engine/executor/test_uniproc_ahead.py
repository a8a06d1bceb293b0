"""The in-process executor a step ahead: what is begun when, the same tokens, and records of the right step."""

import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from core_bench import Seen
from device_sampler import DeviceSampler
from fake_decoder import FakeDecoder, fake_config
from fake_device import STEP_MS, FakeDevice
from fake_executor import make_request

from vllm_obs.engine import faults
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.executor.uniproc import UniprocExecutor
from vllm_obs.engine.messages import AbortRequests, FinishReason, SamplingSpec
from vllm_obs.engine.profile_order import ProfileOrder
from vllm_obs.engine.worker import model_runner
from vllm_obs.engine.worker import worker as worker_module
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileEnded, StepAnswered, WorkerStep

SPECS = [
    SamplingSpec(max_tokens=7, temperature=0.0),
    SamplingSpec(max_tokens=5, temperature=0.9, seed=1, logprobs=1),
    SamplingSpec(max_tokens=9, top_p=0.8, top_k=10, seed=2),
    SamplingSpec(max_tokens=6, temperature=0.0, min_tokens=3, eos_token_ids=(5,), logit_bias=((7, 2.0),)),
    SamplingSpec(max_tokens=8, temperature=1.2, repetition_penalty=1.5, frequency_penalty=0.5, seed=3),
    SamplingSpec(max_tokens=4, bad_words_ids=((7,), (1, 2)), seed=5, prompt_logprobs=1),
]


@dataclass
class Engine:
    """A core over a real worker, of a fake model, and what its client saw."""

    core: EngineCore
    executor: UniprocExecutor
    recorder: MemoryRecorder
    seen: dict[str, Seen] = field(default_factory=dict)

    def add(self, name: str, prompt: list[int], spec: SamplingSpec) -> None:
        self.core.add_request(make_request(name, prompt, sampling=spec))

    def step(self) -> None:
        for message in self.core.step().values():
            begin = 0
            for row, name in enumerate(message.request_ids):
                end = begin + message.num_new_tokens[row]
                seen = self.seen.setdefault(name, Seen())
                assert seen.finish_reason == -1, "nothing comes after an ending"
                seen.token_ids += message.new_token_ids[begin:end]
                seen.finish_reason = message.finish_reasons[row]
                begin = end

    def run(self) -> dict[str, list[int]]:
        while self.core.has_work():
            self.step()
        return {name: seen.token_ids for name, seen in self.seen.items()}


def make_engine(is_ahead: bool, **changes: Any) -> Engine:
    changes = {"num_gpu_blocks_override": 60, "max_num_batched_tokens": 24, **changes}
    recorder = MemoryRecorder()
    config = fake_config(async_scheduling=is_ahead, **changes)
    executor = UniprocExecutor(config, recorder)
    engine = Engine(EngineCore(config, executor, recorder), executor, recorder)
    recorder.records.clear()
    return engine


@pytest.fixture(autouse=True)
def fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "load_model", lambda *_: FakeDecoder())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """What runners have from here on."""
    device = FakeDevice()
    monkeypatch.setattr(model_runner, "make_port", lambda *_: device)
    monkeypatch.setattr(model_runner, "make_sampler", lambda *_: DeviceSampler(device))
    return device


@pytest.fixture(params=["host", "device"])
def place(request: pytest.FixtureRequest) -> str:
    """Where tokens are sampled."""
    if request.param == "device":
        request.getfixturevalue("device")
    return str(request.param)


def fill(engine: Engine) -> Engine:
    for number, spec in enumerate(SPECS):
        engine.add(str(number), list(range(3, 5 + 4 * number)), spec)
    return engine


def told(device: FakeDevice) -> list[str]:
    return [call for call in device.calls if call in ("upload", "download", "wait")]


def test_nothing_waits_between_a_steps_begin_and_the_next_ones(device: FakeDevice) -> None:
    engine = make_engine(is_ahead=True)
    device.calls.clear()
    engine.add("a", [1, 2, 3], SamplingSpec(max_tokens=4, temperature=0.0))
    engine.run()
    begun = ["upload", "download"]
    assert told(device) == [*begun, *begun, "wait", *begun, "wait", *begun, "wait", "wait"]


def test_answered_at_once_each_step_waits(device: FakeDevice) -> None:
    engine = make_engine(is_ahead=False)
    device.calls.clear()
    engine.add("a", [1, 2, 3], SamplingSpec(max_tokens=4, temperature=0.0))
    engine.run()
    assert told(device) == ["upload", "download", "wait"] * 4


def test_every_tokens_is_that_of_steps_answered_at_once(place: str) -> None:
    expected = fill(make_engine(is_ahead=False)).run()
    engine = fill(make_engine(is_ahead=True))
    assert engine.run() == expected
    assert engine.executor.worker.runner.input_batch.num_rows == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(6))
def test_arrivals_aborts_and_preemptions_change_nothing(place: str, seed: int) -> None:
    draw, expected = Random(seed), fill(make_engine(is_ahead=False)).run()
    engine = make_engine(is_ahead=True, num_gpu_blocks_override=16, enable_prefix_caching=bool(seed % 2))
    waiting = list(range(len(SPECS)))
    num_extra = 0
    while waiting or engine.core.has_work():
        if waiting and draw.random() < 0.4:
            number = waiting.pop(0)
            engine.add(str(number), list(range(3, 5 + 4 * number)), SPECS[number])
        if draw.random() < 0.2:
            num_extra += 1
            engine.add("extra", [num_extra, 2], SamplingSpec(max_tokens=30, seed=num_extra))
        if draw.random() < 0.2:
            engine.core.abort_requests(AbortRequests(0, 0, ["extra"], FinishReason.ABORT))
            engine.step()
            engine.seen.pop("extra", None)  # another may have the id from now on
        engine.step()
        engine.core.scheduler.check()
        if "extra" in engine.seen and engine.seen["extra"].finish_reason >= 0:
            del engine.seen["extra"]
    engine.seen.pop("extra", None)
    assert {name: seen.token_ids for name, seen in engine.seen.items()} == expected


def test_an_id_that_comes_again_while_its_old_step_is_under_way_gets_tokens_of_its_own(place: str) -> None:
    spec = SamplingSpec(max_tokens=6, temperature=0.0)
    alone = make_engine(is_ahead=False)
    alone.add("a", [9, 8, 7, 6], spec)
    expected = alone.run()
    engine = make_engine(is_ahead=True)
    engine.add("a", [1, 2, 3], spec)
    engine.step()
    engine.step()
    engine.core.abort_requests(AbortRequests(0, 0, ["a"], FinishReason.ABORT))
    engine.add("a", [9, 8, 7, 6], spec)
    assert [outputs.finish_reasons for outputs in engine.core.step().values()] == [[int(FinishReason.ABORT)]]
    engine.seen.clear()
    assert engine.run() == expected


def test_a_step_is_recorded_once_with_its_own_sizes_moments_and_execution(device: FakeDevice) -> None:
    engine = make_engine(is_ahead=True)
    engine.add("a", [1, 2, 3], SamplingSpec(max_tokens=5, temperature=0.0))
    engine.add("b", [4, 5], SamplingSpec(max_tokens=2, temperature=0.0))
    engine.run()
    steps = engine.recorder.of(WorkerStep)
    assert [(step.step, step.num_tokens, step.num_rows) for step in steps] == [
        *((1, 5, 2), (2, 2, 2), (3, 1, 1), (4, 1, 1), (5, 1, 1)),
    ]
    answered = {record.step: record for record in engine.recorder.of(StepAnswered)}
    for step in steps:
        assert list(step[2:7]) == sorted(step[2:7])
        assert step.sampled_at <= answered[step.step].sampled_at
    for step, following in pairwise(steps):
        assert following.sample_begun_at < step.sampled_at, "it was begun before the answer was there"
    # The first tells of the warm-up; who waits for this device lets it come to the end of all that is queued.
    assert [step.device_ns / 1e6 / STEP_MS for step in steps] == [1, 0, 2, 1, 1]


def test_a_row_without_numbers_fails_alone_with_a_step_begun_behind_it(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(make_engine(is_ahead=False)).run()
    engine = fill(make_engine(is_ahead=True))
    engine.add("bad", [2, 2], SamplingSpec(max_tokens=9, temperature=0.0))
    for _ in range(5):
        engine.step()
    monkeypatch.setattr(faults, "_FAULTS", {"logits": ("raise", "bad")})
    tokens = engine.run()
    assert 0 < len(tokens.pop("bad")) < 9
    assert engine.seen["bad"].finish_reason == FinishReason.ERROR
    assert tokens == expected


@pytest.mark.parametrize("site", ["execute_model", "sample_tokens"])
def test_after_a_step_that_failed_the_engine_goes_on(
    place: str, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    engine = make_engine(is_ahead=True)
    engine.add("a", [1, 2, 3], SPECS[0])
    engine.step()
    monkeypatch.setattr(faults, "_FAULTS", {site: ("raise", "")})
    engine.step()
    monkeypatch.setattr(faults, "_FAULTS", {})
    while engine.core.has_work():
        engine.step()
    assert engine.seen["a"].finish_reason == FinishReason.ERROR
    assert engine.core.counters.num_failed_steps == 1
    engine.seen.clear()
    alone = make_engine(is_ahead=False)
    for each in (alone, engine):
        each.add("b", [5, 6], SPECS[1])
    assert engine.run() == alone.run()


def test_steps_of_a_profile_are_answered_at_once_and_counted(device: FakeDevice, tmp_path: Path) -> None:
    engine = make_engine(is_ahead=True)
    engine.add("a", [1, 2, 3], SamplingSpec(max_tokens=8, temperature=0.0))
    engine.step()
    assert engine.executor.profile(ProfileOrder("p", "operators", str(tmp_path), 30.0, 2)).result()
    device.calls.clear()
    engine.run()
    assert told(device)[:6] == ["wait", "upload", "download", "wait", "upload", "download"], (
        "what is under way ends before"
    )
    deadline = time.monotonic() + 30
    while engine.executor.profile(None, is_look=True).result():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (ended,) = engine.recorder.of(ProfileEnded)
    assert (ended.num_steps, ended.error) == (2, "")
