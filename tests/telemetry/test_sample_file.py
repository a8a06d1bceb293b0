"""Samples come out of their file as they went in; what is no such file is refused with its reason."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_sets import engine_samples

from vllm_obs.telemetry import sample_file
from vllm_obs.telemetry.sample_file import SampleFileError, read_samples, write_samples
from vllm_obs.telemetry.sample_set import Frame, StackRun, ThreadSamples, role_family


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "EngineCore_DP0.samples.json"
    samples = engine_samples()
    write_samples(path, samples)
    assert read_samples(path) == samples
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_set_of_many_pieces_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.samples.json"
    frames = [Frame(f"f{number} é;\n", "a.py", number) for number in range(1000)]
    runs = [StackRun(number % 500, 1, 0.01, 0.005, 1) for number in range(5000)]
    samples = engine_samples()._replace(
        frames=frames,
        stacks=[[number, number + 1] for number in range(500)],
        threads=[ThreadSamples("a", 1, runs), ThreadSamples("b", 2, [])],
    )
    write_samples(path, samples)
    assert read_samples(path) == samples


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken.samples.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_samples(tmp_path / "taken.samples.json", engine_samples())
    assert [path.name for path in tmp_path.iterdir()] == ["taken.samples.json"]


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content.pop(name)


@pytest.mark.parametrize(
    "spoil",
    [
        without("frames"),
        without("cost"),
        lambda content: content.update(frames=3),
        lambda content: content.update(frames=[["f", "a.py"]]),
        lambda content: content.update(stacks=[["x"]]),
        lambda content: content.update(threads=[["x"]]),
        lambda content: content.update(stacks=[[99]]),
        lambda content: content.update(stacks=[[-1]]),
        lambda content: content["threads"][0]["runs"][0].__setitem__(0, 99),
        lambda content: content["threads"][0]["runs"][0].pop(),
        lambda content: content["threads"][0]["runs"][0].__setitem__(2, math.nan),
        lambda content: content["threads"][0]["runs"][0].__setitem__(3, -math.inf),
        lambda content: content["threads"][0]["runs"][0].__setitem__(1, math.inf),
        lambda content: content.update(rate_hz="nan"),
        lambda content: content.update(rate_hz=10**400),
        lambda content: content["cost"].update(cpu_seconds=math.inf),
        lambda content: content["cost"].update(num_looks=math.inf),
    ],
)
def test_a_spoilt_file_is_refused(tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    path = tmp_path / "x.samples.json"
    write_samples(path, engine_samples())
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(SampleFileError, match=r"x\.samples\.json"):
        read_samples(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '"x"', "[" * 5000])
def test_what_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.samples.json"
    path.write_text(text)
    with pytest.raises(SampleFileError, match="holds no samples"):
        read_samples(path)


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.samples.json"
    write_samples(path, engine_samples())
    monkeypatch.setattr(sample_file, "MAX_FILE_BYTES", 100)
    with pytest.raises(SampleFileError, match="bytes; the limit is 100"):
        read_samples(path)
    monkeypatch.undo()
    monkeypatch.setattr(sample_file, "MAX_ENTRIES", 3)
    with pytest.raises(SampleFileError, match="4 entries of one kind; the limit is 3"):
        read_samples(path)


@pytest.mark.parametrize(
    ("role", "family"),
    [
        ("Worker_TP0", "Worker"),
        ("Worker_TP12", "Worker"),
        ("Worker_DP0_TP1_PP0", "Worker"),
        ("EngineCore_DP0", "EngineCore"),
        ("APIServer_0", "APIServer"),
        ("Observer", "Observer"),
        ("My_Process", "My_Process"),
        ("_0", "_0"),
    ],
)
def test_a_role_belongs_to_the_family_of_its_ranks(role: str, family: str) -> None:
    assert role_family(role) == family
