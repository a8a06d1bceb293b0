"""Tuning under a fake timer: the fastest is found, noise wins nothing, and what does not run is passed over."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from vllm_obs.cli import autotune
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.kernels.triton import tuning_session
from vllm_obs.engine.kernels.triton.configs import (
    ABOUT,
    Configs,
    card_file,
    configs_for,
    configs_of_card,
    read_configs,
    table_text,
)
from vllm_obs.engine.kernels.triton.launch import Launch, LaunchConfig
from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, TINY
from vllm_obs.engine.kernels.triton.sampling_workloads import sampling_workloads
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul
from vllm_obs.engine.kernels.triton.tuning import Entry, Tuning, entry_of
from vllm_obs.engine.kernels.triton.tuning_candidates import neighbours
from vllm_obs.engine.kernels.triton.tuning_race import NUM_FIRST_ROUNDS, NUM_ROUNDS, Race
from vllm_obs.engine.kernels.triton.tuning_session import GpuCard, TuningOrder, tune_card
from vllm_obs.engine.kernels.triton.workloads import Bench, Workload, WorkSize, layer_workloads

START = LaunchConfig({"BLOCK_SIZE": 1024}, 4, 1)
CONFIGS = Configs({"silu_mul": {"any": START}})
FOREVER = 1e9


def workload(kernel: str = "silu_mul") -> Workload:
    gate_up, output = torch.empty(8, 64, device="meta"), torch.empty(8, 32, device="meta")
    return Workload("silu_mul 8 × 32", kernel, lambda configs: silu_mul(gate_up, output, configs), 100)


@dataclass
class FakeCard:
    """A card and its timer: how long a configuration takes is a function of it, times noise.

    noise: factors, one after another. `now` is a clock that goes on with each run.
    """

    seconds_of: Callable[[LaunchConfig], float]
    noise: list[float] = field(default_factory=lambda: [1.0])
    limit_warps: int = 99
    ran: list[LaunchConfig] = field(default_factory=list)
    now: float = 0.0

    def run(self, launch: Launch) -> None:
        if launch.config.num_warps > self.limit_warps:
            raise RuntimeError("out of resource: shared memory\nRequired: 1")
        self.ran.append(launch.config)
        self.now += 1.0

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        factor = self.noise[len(self.ran) % len(self.noise)]
        return self.seconds_of(self.ran[-1]) * factor

    def clock(self) -> float:
        return self.now

    def tuning(self, configs: Configs = CONFIGS, seconds: float = FOREVER) -> Tuning:
        return Tuning(configs, Race(self), seconds, self.run, self.clock)


def smooth(config: LaunchConfig) -> float:
    """Least at blocks of 4096, 8 warps and 3 stages."""
    (size,) = config.sizes.values()
    return 1.0 + abs(size.bit_length() - 13) + abs(config.num_warps.bit_length() - 4) + abs(config.num_stages - 3)


def test_the_fastest_is_found_step_by_step() -> None:
    card = FakeCard(smooth)
    (tuned,) = card.tuning().tune([workload()])
    assert tuned.config == LaunchConfig({"BLOCK_SIZE": 4096}, 8, 3)
    assert (tuned.before, tuned.entry, tuned.is_cut_short) == (START, Entry("silu_mul", "any"), False)
    assert tuned.gain == pytest.approx(1 - 1 / 6)


def test_sizes_come_before_warps_and_warps_before_stages() -> None:
    found = list(neighbours(LaunchConfig({"BLOCK_M": 16, "BLOCK_N": 64}, 4, 2)))
    assert [(each.sizes["BLOCK_M"], each.sizes["BLOCK_N"], each.num_warps, each.num_stages) for each in found] == [
        (32, 64, 4, 2), (16, 128, 4, 2), (16, 32, 4, 2), (16, 64, 8, 2), (16, 64, 2, 2), (16, 64, 4, 3),
        (16, 64, 4, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("noise", [[1.0, 0.5], [1.0, 0.5, 0.5], [0.7, 1.0, 1.4, 0.9, 1.1], [1.0, 1.0, 0.1]])
def test_noise_wins_nothing(noise: list[float]) -> None:
    card = FakeCard(lambda config: 1.0, noise)
    (tuned,) = card.tuning().tune([workload()])
    assert (tuned.config, tuned.gain) == (START, 0.0)
    assert tuned.num_tried == len(list(neighbours(START)))


def test_what_is_faster_by_a_hair_wins_nothing() -> None:
    card = FakeCard(lambda config: 1.0 if config == START else 0.99)
    (tuned,) = card.tuning().tune([workload()])
    assert tuned.config == START


def test_runs_are_in_turn_and_the_hopeless_is_not_raced_to_the_end() -> None:
    slow = replace(START, num_warps=8)
    card = FakeCard(lambda config: 2.0 if config == slow else 1.0)
    launch = workload().launch(CONFIGS)
    runs = [lambda config=config: card.run(replace(launch, config=config)) for config in (START, slow)]
    verdict = Race(card).run(*runs)
    assert (verdict.is_faster, verdict.ratio, verdict.seconds) == (False, 2.0, 2.0)
    assert card.ran == [START, slow, slow, START, START, slow][: 2 * NUM_FIRST_ROUNDS]
    card.ran.clear()
    card.seconds_of = lambda config: 0.5 if config == slow else 1.0
    assert Race(card).run(*runs).is_faster
    assert len(card.ran) == 2 * NUM_ROUNDS


def test_what_the_card_does_not_run_is_passed_over() -> None:
    card = FakeCard(smooth, limit_warps=4)
    (tuned,) = card.tuning().tune([workload()])
    assert tuned.config == LaunchConfig({"BLOCK_SIZE": 4096}, 4, 3)
    assert {config.num_warps for config in tuned.failed} == {8}


def test_a_search_ends_at_its_time_with_what_leads() -> None:
    card = FakeCard(smooth)
    (tuned,) = card.tuning(seconds=30.0).tune([workload()])
    assert tuned.is_cut_short
    assert tuned.config == LaunchConfig({"BLOCK_SIZE": 2048}, 4, 1)
    assert card.now < 30 + 2 * NUM_ROUNDS


def test_an_entry_is_tuned_once_and_the_next_kernel_sees_it() -> None:
    card = FakeCard(smooth)
    tuning = card.tuning()
    assert len(tuning.tune([workload(), workload()])) == 1
    assert tuning.configs.table["silu_mul"]["any"].sizes == {"BLOCK_SIZE": 4096}


def test_every_kernel_has_a_workload_whose_entry_is_found() -> None:
    """That each runs is for tests/benchmarks/test_bench_gpu.py to see, which times all of them."""
    configs, bench = configs_for(90), Bench(TINY, WorkSize(2, 40, 24, num_splits=4), torch.device("cpu"))
    found = [*layer_workloads(bench), *sampling_workloads(bench)]
    assert {each.kernel for each in found} == set(configs.table)
    for each in found:
        entry = entry_of(each, configs)
        assert entry.kernel == each.kernel
        assert each.launch(configs).config.num_warps == configs.of(*entry).num_warps
        assert each.launch(configs).work.bytes_of(each.rows) > 0


def fake_gpu(timer: FakeCard) -> GpuCard:
    return GpuCard("NVIDIA H200", 90, torch.device("cpu"), timer, timer.run)


def test_a_session_writes_the_table_of_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_session, "FOLDER", tmp_path)
    timer = FakeCard(lambda config: 1.0 / config.num_warps)
    said: list[str] = []
    order = TuningOrder(TINY, WorkSize(2, 32, 16, num_splits=2), 1e9)
    tuned = tune_card(fake_gpu(timer), order, said.append, timer.clock)
    assert said[0] == "NVIDIA H200: begins with sm_90.json, of its compute capability."
    path = tuned.write()
    assert path == tmp_path / "nvidia_h200.json"
    own = read_configs(path)
    assert own.table["qkv"]["any"].num_warps == 16
    assert "rms_norm" in own.table
    assert f'"{ABOUT}"' in path.read_text()
    assert any(line.startswith("qkv any") and "faster" in line for line in tuned.lines())
    chosen = configs_of_card("NVIDIA H200", 90, tmp_path)
    assert chosen.reason == "nvidia_h200.json, measured on NVIDIA H200; else sm_90.json"
    assert chosen.configs.of("qkv").num_warps == 16
    wide = ("paged_attention", "prefill_256")
    assert chosen.configs.of(*wide) == configs_for(90).of(*wide)
    kept = own.table | {"split_reduction": {"any": LaunchConfig({}, 1, 1)}, "rotary": {}}
    path.write_text(table_text(Configs(kept)))
    tuned.entries = [each for each in tuned.entries if each.entry.kernel == "qkv"]
    tuned.write()
    assert read_configs(path).table["split_reduction"]["any"] == LaunchConfig({}, 1, 1), (
        "what was found before stays"
    )


def test_a_card_without_a_table_takes_its_capabilitys_and_says_so(tmp_path: Path) -> None:
    assert configs_of_card("NVIDIA H100 PCIe", 90, tmp_path) == (
        configs_for(90), "sm_90.json, of its compute capability",
    )  # fmt: skip
    assert configs_of_card("NVIDIA L4", 89, tmp_path) == (
        configs_for(80), "sm_80.json, the nearest: there is none for compute capability 89",
    )  # fmt: skip
    assert card_file("NVIDIA A100-SXM4-80GB") == "nvidia_a100_sxm4_80gb.json"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"nothing": {"any": {"sizes": {}, "num_warps": 4, "num_stages": 1}}}',
        '{"qkv": {"any": {"sizes": {}, "num_warps": 3, "num_stages": 1}}}',
        '{"qkv": {"any": {"sizes": {"BLOCK_SIZE": 64}, "num_warps": 4, "num_stages": 1}}}',
        '{"qkv": {"any": {"sizes": {}, "num_warps": "4", "num_stages": 1}}}',
        '{"qkv": {"any": {"num_warps": 4}}}',
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia_h200.json").write_text(text)
    with pytest.raises(ConfigError, match=r"nvidia_h200\.json: "):
        configs_of_card("NVIDIA H200", 90, tmp_path)


def test_a_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(table_text(configs_for(90), {"card": "x"}))
    assert read_configs(path) == configs_for(90)


def test_sizes_of_the_default_model_are_llamas() -> None:
    assert (LLAMA_3_8B.hidden_size, LLAMA_3_8B.num_heads // LLAMA_3_8B.num_kv_heads) == (4096, 4)


def test_an_order_of_the_command_has_what_was_asked_for() -> None:
    order = autotune.order_of({"model": None, "batch": 4, "context": 64, "seconds": 5.0})
    assert order == TuningOrder(LLAMA_3_8B, WorkSize(4, 64, 64), 5.0)
