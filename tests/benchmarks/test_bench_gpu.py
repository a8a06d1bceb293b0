"""benchmarks/gpu without a GPU: its budget, its report, its children, and the whole of it on tiny sizes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vllm_obs.engine.kernels.triton.model_shape import LLAMA_3_8B, QWEN3_0_6B, ModelShape
from vllm_obs.engine.model.source import resolve_model
from vllm_obs.engine.model_size import model_size
from vllm_obs.telemetry.process_reader import ProcessReader

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
SCRIPT = FOLDER / "bench_gpu.py"
LONG_SECONDS = 900
"""Far more than any of it takes: nothing may be cut short."""
PARTS = ("ceilings", "checks", "speeds", "throughput", "telemetry")


Module = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def module() -> Iterator[Module]:
    """Imports one of them, as they import each other: by its bare name."""
    before = sys.path[:]
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("gpu_")]:
        del sys.modules[name]


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_a_part_leaves_is_the_next_ones_and_cuts_are_said(module: Module) -> None:
    clock, said = Clock(), list[str]()
    budget = module("gpu_budget").Budget(60.0, {"first": 10.0, "second": 20.0}, clock, said.append)
    first = budget.part("first")
    assert (first.left_seconds, first.has_time(19.0), first.has_time(20.0)) == (20.0, True, False)
    clock.now += 5
    second = budget.part("second")
    assert second.left_seconds == 55.0
    clock.now += 99
    assert (second.left_seconds, second.has_time()) == (0.0, False)
    second.cut("half of it")
    second.cut("half of it")
    first.fail("no such kernel")
    assert said == ["CUT SHORT second: half of it", "FAILED first: no such kernel"]
    assert (budget.cuts, budget.failures) == (["second: half of it"], ["first: no such kernel"])


def test_a_child_is_ended_with_all_that_it_started(module: Module) -> None:
    ended = module("gpu_child").run_until(["sh", "-c", "sleep 600 & echo $!; wait"], 2.0)
    assert (ended.exit_code, ended.is_cut_short) == (-signal.SIGTERM, True)
    reader, pid, deadline = ProcessReader(), int(ended.output), time.monotonic() + 20
    while not reader.is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.is_gone(pid)


def test_a_child_that_ends_by_itself_says_what_it_has_to_say(module: Module) -> None:
    ended = module("gpu_child").run_until(
        [sys.executable, "-c", "import sys; print(1); sys.exit('no memory')"], 60.0
    )
    assert ended == ("1\n", "no memory\n", 1, False)


ABOUT = {
    "card": "NVIDIA H200", "capability": 90, "driver": "575.57.08", "kernel_table": "sm_90.json",
    "torch": "2.13.0", "triton": "3.7.1", "date": "2026-11-30", "is_dry_run": False,
}  # fmt: skip
FOUND: dict[str, Any] = {
    "about": ABOUT,
    "ceilings": {"bytes_per_second": 4.1e12, "flops_per_second": 7.5e14},
    "checks": [
        {"check": "rotary", "allowed": 0.04, "difference": 0.0039, "error": "", "is_right": True},
        {"check": "qkv", "allowed": 0.04, "difference": None, "error": "RuntimeError: no", "is_right": False},
    ],
    "speeds": [
        {"model": "llama-3-8b", "kernel": "silu_mul 2048 × 14336", "seconds": 50e-6, "num_bytes": 176_160_768,
         "num_flops": 0, "bytes_per_second": 3.5e12, "flops_per_second": 0.0, "bound_by": "bytes",
         "share_of_ceiling": 0.86},
    ],
    "throughput": [
        {"model": "llama-3-8b", "batch": 32, "mode": "graphs", "tokens_per_second": 4000.0, "step_seconds": 0.008,
         "floor_seconds": 0.004, "share_of_floor": 0.5},
    ],
    "telemetry": {"pairs": [{"telemetry": 99.0, "none": 100.0}], "ratios": [0.99], "mean_ratio": 0.99},
    "failures": ["checks: qkv: odd"],
    "cuts": ["telemetry: half of it"],
    "seconds": 471.0,
    "budget_seconds": 480.0,
}  # fmt: skip


def test_the_report_has_card_driver_date_and_every_table(module: Module, tmp_path: Path) -> None:
    report = module("gpu_report")
    as_json, as_tables = report.write_report(tmp_path / "out", FOUND)
    assert json.loads(as_json.read_text()) == FOUND
    text = as_tables.read_text()
    assert text.startswith("NVIDIA H200, driver 575.57.08, torch 2.13.0, triton 3.7.1, 2026-11-30;")
    for line in (
        "Measured ceilings: 4.10 TB/s (a copy), 750 TFLOP/s (a bf16 product).",
        "1 of 2 checks against float64 hold.",
        "| rotary | 3.9e-03 | 4e-02 |  |",
        "| qkv | – | 4e-02 | RuntimeError: no |",
        "| llama-3-8b | silu_mul 2048 × 14336 | 50.0 | 3500 |  | bytes | 86 % |",
        "| llama-3-8b | 32 | graphs | 4000 | 8.00 | 4.00 | 50 % |",
        "Tokens/s with telemetry over without: 0.9900 (pairs: 0.9900).",
        "- checks: qkv: odd",
        "- telemetry: half of it",
    ):
        assert line in text.splitlines()


def test_parts_that_are_not_there_have_no_table(module: Module) -> None:
    bare = {
        "about": ABOUT | {"is_dry_run": True},
        "failures": [],
        "cuts": [],
        "seconds": 1.0,
        "budget_seconds": 480.0,
    }
    text = module("gpu_report").markdown(bare)
    assert text.startswith("**A dry run under Triton's interpreter")
    assert "|" not in text


def test_the_card_is_told_by_its_name_driver_and_table(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    card = module("gpu_card")
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr(card, "DeviceTimer", card.HostTimer)
    monkeypatch.setattr(card, "open_nvml", lambda: None)
    facts = card.Card.current().facts()
    assert (facts["card"], facts["capability"], facts["driver"]) == ("NVIDIA H200", 90, "unknown")
    assert (facts["kernel_table"], facts["is_dry_run"]) == ("sm_90.json, of its compute capability", False)
    driver = SimpleNamespace(begin=lambda: True, read=lambda: [SimpleNamespace(driver="575.57.08")])
    monkeypatch.setattr(card, "open_nvml", lambda: driver)
    assert card.Card.current().facts()["driver"] == "575.57.08"


def test_models_have_the_sizes_of_their_names(module: Module, tmp_path: Path) -> None:
    models = module("gpu_models")
    found = {}
    for name in models.MODELS:
        shape = resolve_model(str(models.write_model(tmp_path, name, is_tiny=False)), "dummy").architecture
        found[name] = model_size(shape).num_weights / 1e9
    assert found == {"qwen3-0.6b": pytest.approx(0.596, abs=0.001), "llama-3-8b": pytest.approx(8.03, abs=0.001)}


def test_the_shapes_that_kernels_are_measured_at_are_those_of_the_models(module: Module, tmp_path: Path) -> None:
    models = module("gpu_models")
    found = {
        ModelShape.of(
            name, resolve_model(str(models.write_model(tmp_path, name, is_tiny=False)), "dummy").architecture
        )
        for name in models.MODELS
    }
    assert found == {LLAMA_3_8B, QWEN3_0_6B}


def _run(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS + 30,
    )


def _check_dry(tmp_path: Path, ended: "subprocess.CompletedProcess[str]", *parts: str) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads((tmp_path / "gpu.json").read_text())
    assert set(parts) <= set(found)
    assert (found["failures"], found["cuts"]) == ([], [])
    assert [row for row in found["checks"] if not row["is_right"]] == []
    kernels = {row["kernel"].split(" ")[0] for row in found["speeds"]}
    assert len(kernels) == 13
    assert "no figure means anything" in ended.stdout
    return found


def test_every_kernel_is_checked_and_timed_under_the_interpreter(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--dry-run", "--parts", "checks", "speeds", "--seconds", "280")
    found = _check_dry(tmp_path, ended, "ceilings", "checks", "speeds")
    assert not {"throughput", "telemetry"} & set(found)


def test_a_kernel_that_is_wrong_is_told_and_is_an_exit_code(module: Module) -> None:
    check = module("gpu_checks").Check
    wrong, right = check("kv_write bf16", 0.0, lambda: 3.0).row(), check("rotary", 0.04, lambda: 0.03).row()
    failed = check("qkv", 0.04, lambda: 1 // 0).row()
    assert [row["is_right"] for row in (wrong, right, failed)] == [False, True, False]
    assert failed["error"].startswith("ZeroDivisionError: ")
    found = FOUND | {"checks": [wrong, right], "failures": []}
    assert "| kv_write bf16 | 3.0e+00 | 0e+00 | WRONG |" in module("gpu_report").markdown(found)
    exit_code = module("bench_gpu").exit_code
    assert [exit_code(found), exit_code(found | {"checks": [right]})] == [1, 0]
    assert exit_code(found | {"checks": [right], "failures": ["telemetry: no word"]}) == 1


CHILD = """
import json, os, sys, time
order = json.loads(sys.argv[1])
done = order["done"].get("checks", 0)
names = ["first", "lost", "last"][done:]
print(json.dumps({"about": {"card": "none"}}), flush=True)
for name in names:
    print(json.dumps({"part": "checks", "begun": name}), flush=True)
    if name == "lost":
        sys.exit("the device is gone")
    row = {"check": name, "allowed": 1.0, "difference": 0.0, "error": "", "is_right": True}
    print(json.dumps({"part": "checks", "row": row}), flush=True)
if os.environ.get("STAY"):
    print(json.dumps({"part": "checks", "begun": "endless"}), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def kernels(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The part of the kernels with another process in its place."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    found = module("gpu_kernels")
    monkeypatch.setattr(found, "SCRIPT", script)
    return found


def _parts(module: Module, seconds: float) -> tuple[Any, dict[str, Any]]:
    budget = module("gpu_budget").Budget(seconds, {"ceilings": 1.0, "checks": 1.0, "speeds": 1.0}, say=list)
    return budget, {name: budget.part(name) for name in budget.shares}


def test_an_item_that_takes_its_process_with_it_is_a_failure_and_the_rest_goes_on(
    module: Module, kernels: ModuleType
) -> None:
    budget, parts = _parts(module, 120.0)
    found = kernels.measure_kernels(parts, is_dry=True)
    assert [(row["check"], row["is_right"]) for row in found["checks"]] == [
        ("first", True),
        ("lost", False),
        ("last", True),
    ]
    assert budget.failures == ["checks: lost: the process ended with 1: the device is gone"]
    assert (budget.cuts, found["about"]) == ([], {"card": "none"})


BROKEN_CHILD = """
import json, sys
parts = json.loads(sys.argv[1])["deadlines"]
part = "checks" if "checks" in parts else "speeds"
print(json.dumps({"part": part, "begun": "first"}))
print(json.dumps({"part": part, "row": {"of": part}}))
if part == "checks":
    raise RuntimeError("no memory for the next one's tensors")
"""


def test_a_part_that_breaks_between_its_items_is_given_up_and_the_next_part_goes_on(
    module: Module, kernels: ModuleType
) -> None:
    kernels.SCRIPT.write_text(BROKEN_CHILD)
    budget, parts = _parts(module, 120.0)
    found = kernels.measure_kernels(parts, is_dry=True)
    assert found == {"checks": [{"of": "checks"}], "speeds": [{"of": "speeds"}]}
    assert budget.failures == ["checks: behind first: RuntimeError: no memory for the next one's tensors"]


def test_an_item_that_takes_all_the_time_is_cut_with_all_behind_it(
    module: Module, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAY", "1")
    budget, parts = _parts(module, 6.0)
    begun = time.monotonic()
    found = kernels.Kernels(parts, is_dry=True, done={"checks": 2}).measure()
    assert time.monotonic() - begun < 3 * 6.0
    assert [row["check"] for row in found["checks"]] == ["last"]
    assert (budget.cuts, budget.failures) == (["checks: endless, and all behind it", "speeds: all of it"], [])


def test_a_mode_that_comes_to_grief_is_a_failure_and_the_next_one_runs_in_another_process(module: Module) -> None:
    throughput, ended = module("gpu_throughput"), module("gpu_child").Ended
    budget, parts = _parts(module, 60.0)
    modes = ["graphs", "eager"]

    def left(*given: Any) -> list[str]:
        found: list[str] = throughput._modes_left(parts["checks"], "qwen", modes, *given)
        return found

    assert left(["graphs"], ended("", "RuntimeError: an illegal memory access\n", 1, False)) == ["eager"]
    assert left(["graphs", "eager"], ended("", "", 0, False)) == []
    assert left([], ended("", "ConfigError: no\n", 1, False)) == ["eager"]
    assert left(["graphs"], ended("", "", -15, True)) == ["eager"]
    assert budget.failures == [
        "checks: qwen, graphs: RuntimeError: an illegal memory access",
        "checks: qwen, graphs: ConfigError: no",
    ]
    assert budget.cuts == ["checks: qwen, graphs: its time was up"]


def test_a_time_that_is_too_short_cuts_and_says_what(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--dry-run", "--parts", "checks", "throughput", "--seconds", "0.001")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert (found["checks"], found["throughput"], found["failures"]) == ([], [], [])
    assert {"checks: all of it", "throughput: llama-3-8b"} <= {*found["cuts"]}
    assert "CUT SHORT checks: all of it" in ended.stderr
    assert "Nothing is known of the card" in ended.stdout


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 60)
def test_the_whole_script_runs_on_tiny_sizes(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--dry-run", "--seconds", str(LONG_SECONDS))
    found = _check_dry(tmp_path, ended, *PARTS)
    rows = {(row["model"], row["mode"], row["batch"]) for row in found["throughput"]}
    models, modes = ("llama-3-8b", "qwen3-0.6b"), ("eager", "graphs")
    assert rows == {(model, mode, batch) for model in models for mode in modes for batch in (1, 3)}
    assert all(row["tokens_per_second"] > 0 and row["floor_seconds"] > 0 for row in found["throughput"])
    assert found["telemetry"]["mean_ratio"] > 0


def test_without_a_gpu_it_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ended = _run(tmp_path)
    assert ended.returncode == 78
    assert ended.stderr.startswith("bench-gpu: there is no GPU")
    assert list(tmp_path.iterdir()) == []
