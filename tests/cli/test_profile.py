"""What `vllm-obs profile` prints, and what it refuses before it asks anybody."""

from pathlib import Path
from typing import Any

import pytest

from vllm_obs.cli import profile as profile_module
from vllm_obs.cli.main import main
from vllm_obs.cli.profile_tables import NUM_ROWS, profile_words
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError

TABLE: dict[str, Any] = {
    "role": "Worker_TP0",
    "num_steps": 4,
    "first_step": 7,
    "last_step": 10,
    "median_step_seconds": 0.0101,
    "max_step_seconds": 0.02,
    "forward_seconds": 0.04,
    "accounted_share": 0.951,
    "operators": [
        {
            "operator": "linear.gate_up",
            "phase": "forward",
            "num_calls": 120,
            "self_seconds": 0.02,
            "total_seconds": 0.021,
            "share_of_steps": 0.4,
            "share_of_forward": 0.5,
        },
        {
            "operator": "a_name_that_is_longer_than_its_column_can_be",
            "phase": "sample",
            "num_calls": 4,
            "self_seconds": 0.001,
            "total_seconds": 0.001,
            "share_of_steps": 0.02,
            "share_of_forward": None,
        },
    ],
}
FILES = [{"name": "Worker_TP0.trace.json.gz", "num_bytes": 12_300}]
PROFILE: dict[str, Any] = {
    "profile": "p",
    "kind": "operators",
    "state": "written",
    "directory": "/run/profiles/p",
    "operators": [TABLE],
    "samples": None,
    "parts": [],
    "files": FILES,
}


def test_the_table_for_people() -> None:
    assert (
        "\n".join(profile_words(PROFILE, None))
        == """\
Worker_TP0: 4 steps (7 to 10), median 10.1 ms, longest 20.0 ms

  operator                               phase       calls    self ms   total ms   steps  forward
  linear.gate_up                         forward       120       20.0       21.0  40.0 %   50.0 %
  a_name_that_is_longer_than_its_column… sample          4        1.0        1.0   2.0 %

  Operators account for 95.1 % of the 0.040 s that the forward passes took; the rest is Python between them.

Files in /run/profiles/p:
  Worker_TP0.trace.json.gz                 12 kB  open https://ui.perfetto.dev, then Open trace file"""
    )


def test_what_is_beyond_the_rows_is_summed() -> None:
    row = TABLE["operators"][0]
    lines = profile_words(PROFILE | {"operators": [TABLE | {"operators": [row] * (NUM_ROWS + 2)}]}, None)
    assert sum("linear.gate_up" in line for line in lines) == NUM_ROWS
    assert any(line.startswith("  (2 more)") and line.endswith("40.0") for line in lines)


def test_kernels_of_a_device_are_told_after_the_operators() -> None:
    kernel = {"kernel": "paged_attention_kernel", "kind": "triton", "num_calls": 30, "device_seconds": 0.01,
              "mean_seconds": 0.0003, "share_of_device": 0.25}  # fmt: skip
    device = {"step_seconds": 0.05, "device_seconds": 0.04, "device_busy_seconds": 0.035}
    many = TABLE | device | {"kernels": [kernel] * (NUM_ROWS + 1)}
    lines = profile_words(PROFILE | {"operators": [many]}, None)
    assert any("it was busy for 0.035 s of the 0.050 s of the steps." in line for line in lines)
    row = "  paged_attention_kernel                 triton         30       10.0      300.0  25.0 %"
    assert lines.count(row) == NUM_ROWS
    assert any(line.startswith("  (1 more)") and line.endswith(" 10.0") for line in lines)


def test_nothing_ran_is_said_friendly() -> None:
    lines = profile_words(PROFILE | {"operators": [TABLE | {"num_steps": 0}]}, Path("/copy"))
    assert lines[0] == "Worker_TP0: no step ran meanwhile; profile again while requests are served."
    assert lines[2] == "Files in /copy:"


def test_a_part_that_failed_and_a_profile_without_files_say_why() -> None:
    part = {"role": "Worker_TP0", "pid": 9, "error": "OSError: No space left on device"}
    failed = PROFILE | {"operators": [], "files": [], "state": "failed", "parts": [part]}
    assert profile_words(failed, None) == [
        "Worker_TP0 (pid 9) gave nothing: OSError: No space left on device",
        "The profile p has no files (failed).",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "soon"], "'soon' is not a number"),
        (["--steps", "1.5"], "'1.5' is not a whole number"),
        (["--kind", "memory"], "--kind memory is not one of operators, samples"),
        (["--output", __file__], "is not a directory"),
        (["--url", "nonsense"], "is not an http:// address"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *arguments]) == 78
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_without_a_server_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(tmp_path))
    assert main(["profile"]) == 1
    assert "no live run is known" in capsys.readouterr().err


class Asked:
    """An inspector whose profile is over at once, and whose files are gone unless they are `PROFILE`'s."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.orders: list[Any] = []

    def post(self, path: str, body: Any) -> Any:
        self.orders.append(body)
        if self.refusal:
            raise InspectorError(self.refusal, 409)
        return PROFILE

    def get(self, path: str, **query: Any) -> Any:
        return PROFILE

    @property
    def words(self) -> str:
        return "run r"

    @property
    def url(self) -> str:
        return Inspector("http://127.0.0.1:9").url


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(profile_module, "find_inspector", lambda url: asked)
    return asked


def test_only_an_order_that_was_taken_is_told(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.refusal = "another is under way"
    assert main(["profile"]) == 1
    assert capsys.readouterr() == ("", "vllm-obs: another is under way\n")
    asked.refusal = ""
    assert main(["profile"]) == 0
    assert capsys.readouterr().err == "Profiling run r (5 s) …\n"


def test_a_profile_of_an_idle_engine_fails_and_says_that_nothing_ran(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = PROFILE | {"operators": [TABLE | {"num_steps": 0}]}
    monkeypatch.setattr(asked, "get", lambda path, **query: idle)
    assert main(["profile", "--seconds", "2"]) == 1
    assert "vllm-obs: no step ran in 2 s, so there is nothing to show\n" in capsys.readouterr().err


def test_nothing_is_ordered_where_the_files_cannot_go(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["profile", "--output", str(tmp_path / "file" / "below")]) == 1
    assert "no files can be written there: Not a directory" in capsys.readouterr().err
    assert asked.orders == []


def test_files_that_could_not_be_copied_are_said_to_be_where_they_are(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--output", str(tmp_path / "new")]) == 1
    shown = capsys.readouterr()
    assert "Files in /run/profiles/p:" in shown.out
    assert shown.err.endswith("; they are in /run/profiles/p\n")
    assert len(asked.orders) == 1
